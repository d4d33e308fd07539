"""Other programs' files on the command line: their options, reading them, and refusing what would be lost."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.actions.requests import folder
from launcher.base import files, registry
from launcher.base.errors import ConfigError, ConfigErrors, raise_any, unreadable
from launcher.base.frozen import dataclass
from launcher.config import open_values

if TYPE_CHECKING:
    from launcher.config.trust.sources import Source
    from launcher.importers import Imported

_NAME = re.compile(r"(?:[A-Za-z_]\w*|[1-9]\d?)\Z", re.ASCII)


def variables_of(words: Iterable[str]) -> dict[str, str]:
    """The variables of ``--set NAME=VALUE``; raises ConfigErrors for an invalid word or a variable set twice."""
    found: dict[str, str] = {}
    errors = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not _NAME.match(name):
            rule = "must be NAME=VALUE, with a shell variable's name"
            errors.append(ConfigError("--set", word, rule, ["--set TP=8"]))
        elif name in found and found[name] != value:
            errors.append(ConfigError("--set", word, f"{name} is already {found[name]}", [f"--set {name}={value}"]))
        found[name] = value
    raise_any(errors)
    return found


def kinds() -> tuple[str, ...]:
    """The supported kinds of files, as they are typed: ``megatron-bridge``."""
    return tuple(name.replace("_", "-") for name in registry.names("importers"))


def read(kind: str, path: Path, variables: Mapping[str, str]) -> "Imported":
    """Read a foreign configuration, for ``hf`` also a model folder; raises ConfigErrors if it is not one."""
    kind = kind.replace("-", "_")
    if kind not in registry.names("importers"):
        raise ConfigErrors([ConfigError("kind", kind, f"must be one of {', '.join(kinds())}")])
    importer = registry.load("importers", kind)
    if variables and not getattr(importer, "HAS_VARIABLES", False):
        words = " ".join(f"{name}={value}" for name, value in variables.items())
        rule = f"it sets variables of a script, and a file of the kind {kind} has none"
        raise ConfigErrors([ConfigError("--set", words, rule)])
    imported: Imported
    if kind == "hf" and path.is_dir():
        from launcher.config.hub import own_models

        file, weights = path / own_models.CONFIG, str(path) if own_models.has_weights(path) else None
        imported = importer.read(_text(file), str(file), weights=weights)
        return imported
    from launcher.importers import refuse_other

    text = _text(path)
    refuse_other(kind, text, str(path))
    imported = importer.read(text, str(path), **({"variables": variables} if variables else {}))
    return imported


def _text(path: Path) -> str:
    try:
        return files.read_text(path, handed=True)
    except (OSError, ValueError) as error:
        rule = f"the file cannot be read: {unreadable(error)}"
        raise ConfigErrors([ConfigError(str(path), None, rule, files.similar_paths(path))]) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """A foreign file used with the words of a run, translated into our settings."""

    kind: str  # Its kind.
    path: Path  # The file.
    imported: "Imported"  # Its settings, and the lists that its keys went to.

    def counted(self) -> str:
        """The number of keys in each list."""
        from launcher.config import left_out

        return left_out.counted(self.imported)

    def words(self, typed: Sequence[str]) -> list[str]:
        """Its settings as overrides, without its run length if the user's words set one."""
        pairs = (text.lstrip("+").partition("=")[::2] for text in typed)
        displaced = open_values.displaced_lengths((key, value) for key, value in pairs)
        return [text for text in self.imported.overrides if not _keys([text]) & displaced]

    def source(self, typed: Sequence[str]) -> "Source":
        """The file with its settings that need consent, without those that the user's words set."""
        from launcher.config.trust import privileged_settings
        from launcher.config.trust.sources import Source

        recipe = self.imported.recipe
        return Source(path=self.path, privileged=privileged_settings.of_words(typed, recipe["choose"] | recipe["set"]))

    def refusals(self, typed: Sequence[str]) -> list[ConfigError]:
        """Errors for settings that matter and are dropped."""
        from launcher.config import left_out

        return left_out.errors(str(self.path), self.imported.left_out, _keys(typed), partial="--partial")

    def remarks(self, typed: Sequence[str], *, partial: bool) -> list[ConfigError]:
        """Warnings about dropped settings that the user accepts, and parts of the file that are not understood."""
        from launcher.config import left_out

        given = _keys(typed)
        without = left_out.warnings(str(self.path), self.imported.left_out, given) if partial else []
        items = (item for item in self.imported.not_understood if not left_out.settings_asked_for(item) & given)
        return [*without, *(ConfigError(str(self.path), None, item) for item in items)]


def _keys(typed: Sequence[str]) -> set[str]:
    return {text.lstrip("+").partition("=")[0] for text in typed}


def import_file(kind: str, path: Path, *, partial: bool, variables: Mapping[str, str]) -> "Imported":
    """A file in our settings; raises ConfigErrors if it is no valid run, or settings that matter are dropped."""
    found = read(kind, path, variables)
    raise_any(refusals(found, path, partial=partial))
    return found


def refusals(imported: "Imported", path: Path, typed: Sequence[str] = (), *, partial: bool) -> list[ConfigError]:
    """Why a file is not imported with the words that the user types; empty if it is."""
    from launcher.config import left_out

    if imported.errors or partial:
        return list(imported.errors)
    return left_out.errors(str(path), imported.left_out, _keys(typed), partial="--partial")


def with_words(imported: "Imported", typed: Sequence[str]) -> "Imported":
    """A file in our settings, overridden by the user's words; raises ConfigErrors for an invalid word."""
    if not typed:
        return imported
    from launcher.config import overrides, recipes
    from launcher.config.catalog import Catalog
    from launcher.config.compose import refuse_unreadable, value_of
    from launcher.spec.parse import OPEN_NODES, accepts, ways_out

    found, errors = overrides.read(typed, Catalog(folder=folder()))
    refuse_unreadable(word.hydra for word in found)
    recipe = imported.recipe | {name: dict(imported.recipe[name]) for name in ("choose", "set")}
    for word in found:
        recipe["choose" if word.group else "set"][word.key] = value = value_of(word)
        if word.sweeps or not (word.group or word.key.startswith(OPEN_NODES) or accepts(word.key, value)):
            errors.append(ConfigError(word.key, word.value, "invalid value for this key", ways_out(word.key, value)))
    raise_any(errors)
    words = [f"{key}={value}" for key, value in recipe["choose"].items()]
    words += [f"{key}={recipes.literal(value)}" for key, value in recipe["set"].items()]
    return replace(imported, overrides=tuple(words), recipe=recipe)
