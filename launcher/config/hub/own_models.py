"""Models given by a ``config.json`` instead of an option: ``model=./folder``, ``model=org/name``.

The file becomes settings of ``model``, which every other word overrides, so that the specification holds all sizes and
nothing is read again. A folder stands for the model with its weights: if it has any, training starts from them, with a
warning, and ``model.weights=null`` starts from random ones. A file stands only for the sizes.
"""

import difflib
import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors, raise_any, unreadable
from launcher.base.frozen import dataclass
from launcher.config import left_out, recipes
from launcher.config.catalog import Catalog
from launcher.config.hub import reading as hugging_face
from launcher.config.hub import repository as hub
from launcher.config.hub.reading import ModelFile
from launcher.config.ledger import Settings, name_from
from launcher.config.overrides import Override, is_own_model
from launcher.config.trust import sources as trust
from launcher.spec import RunSpec

CONFIG = hub.CONFIG
BASE = "_base"  # The option whose values apply to keys that a ``config.json`` lacks.
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_UNREAD_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.pt", "*.pth", "*.gguf")
_TOKENIZER = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")
_DIGITS = 12  # Digits of a hash or revision in ``model.source``.
_SHOWN = 3  # Ways out in one message.


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModel:
    """A model that a command line names by its folder, file or name on the Hub."""

    typed: str  # As the user typed it.
    file: Path  # Its ``config.json``.
    # The folder of its weights and tokenizer, as for ``model.weights``; None if a file was named.
    folder: str | None
    content: ModelFile  # The file as settings of ``model``.

    def settings(self) -> Settings:
        """Return values of the keys of ``model``."""
        own = self.folder is not None and self.content.within is None and self._has_weights()
        weights = {"weights": self.folder} if own else {}
        return {**self.content.model, **weights}

    def expand(self, overrides: Sequence[Override]) -> list[Override]:
        """Return the overrides with the choice of the model replaced by its settings, which come first.

        Raises ConfigErrors: Its weights are in unsupported files, or have unsupported names, and ``model.weights`` is
        not set.
        """
        if "model.weights" not in {override.key for override in overrides}:
            _require_known_weights(self)
        settings = [(f"model.{key}", recipes.literal(value)) for key, value in self.settings().items()]
        return [
            Override(f"model={BASE}", "model", BASE, group=True),
            *(Override(f"{key}={value}", key, value, group=False) for key, value in settings),
            *(override for override in overrides if not (override.group and override.key == "model")),
        ]

    def refusals(self, spec: RunSpec, given: Collection[str]) -> list[ConfigError]:
        """Return errors of keys that matter, are left out and not ``given``, unless the user continues without."""
        if spec.run.partial:
            return []
        return left_out.errors(str(self.file), self.content.imported.left_out, given, partial="run.partial=true")

    def remarks(self, spec: RunSpec, given: Collection[str]) -> Iterator[ConfigError]:
        """Yield warnings about choices that were not ``given``, and about unsupported keys of ``config.json``."""
        yield from (ConfigError(str(self.file), None, item) for item in self.content.imported.not_understood)
        if self.content.within is not None:
            rule = f"only the language model of {self.content.within} is counted and trained, without the encoders of"
            yield ConfigError("model", self.typed, f"{rule} images or sound")
        if spec.run.partial:
            yield from left_out.warnings(str(self.file), self.content.imported.left_out, given)
        if hub.is_name(self.typed) and hub.command(self.file.parent) is None:
            rule = "the local folder of this name is used, not a model on the Hub"
            yield ConfigError("model", self.typed, rule, [f"model=./{self.typed}"])
        if spec.script is not None:
            return
        if self.folder is not None and spec.model.weights is not None and "model.weights" not in given:
            yield _starting_from(self, spec.model.weights)
        reads_text = spec.data.source not in ("synthetic", "tokens")
        if reads_text and spec.data.tokenizer == "bytes" and "data.tokenizer" not in given and _has_tokenizer(self):
            own = f"this model has its own tokenizer for its {spec.model.vocab_size} ids"
            rule = f"bytes are ids 0 to 255, but {own}, which its weights were trained with"
            yield ConfigError("data.tokenizer", "bytes", rule, [f"data.tokenizer={self.folder}"])

    def _has_weights(self) -> bool:
        return has_weights(self.file.parent) or hub.command(self.file.parent) is not None


def has_weights(folder: Path) -> bool:
    """True if a folder has safetensors under the names that the worker reads."""
    return any((folder / name).is_file() for name in _WEIGHTS)


def weights_missing(folder: Path) -> ConfigError:
    """Return the refusal to start from a folder without weights, with the command that fetches them from the Hub."""
    command = hub.command(folder)
    rule = "the weights are not fetched yet" if command else f"the folder has neither {' nor '.join(_WEIGHTS)}"
    return ConfigError("model.weights", str(folder), rule, [*([command] if command else ()), "model.weights=null"])


def chosen(overrides: Iterable[Override], catalog: Catalog, *, fetching: bool = True) -> OwnModel | None:
    """Return the model that the last choice of ``model`` names; None if that is an option.

    Without ``fetching`` a model on the Hub must be in the user's cache. Raises ConfigErrors if it cannot be read.
    """
    last = next((item for item in reversed([*overrides]) if item.group and item.key == "model"), None)
    if last is None or not is_own_model(last.value) or last.sweeps:
        return None
    return _found(last.value, catalog.folder, fetching=fetching)


def with_weights(overrides: Sequence[Override], catalog: Catalog, *, fetching: bool) -> list[Override]:
    """Return the overrides with a Hub name in ``model.weights`` replaced by its folder in the cache.

    Its ``config.json`` is fetched, so that sizes can be compared; raises ConfigErrors if that fails.
    """
    found = []
    for each in overrides:
        if each.key == "model.weights" and hub.is_name(each.value) and not (catalog.folder / each.value).exists():
            try:
                place = str(hub.snapshot(each.value) or _fetched(each.value, fetching=fetching))
            except ConfigErrors as error:
                [fault] = error.errors
                ways = [*(way for way in fault.way_out if not way.startswith("model=./")), "model.weights=null"]
                raise ConfigErrors([ConfigError("model.weights", each.value, fault.rule, ways)]) from None
            each = Override(f"model.weights={place}", "model.weights", recipes.literal(place), group=False)
        found.append(each)
    return found


def may_fetch(overrides: Sequence[Override], catalog: Catalog) -> bool:
    """True if the user, or the user's own recipe, names the model: a foreign recipe may not fetch anything."""
    if any(override.group and override.key == "model" for override in overrides):
        return True
    named = recipes.named(overrides, catalog)
    return named is None or not trust.is_foreign(named[0], folder=catalog.folder)


def _starting_from(model: OwnModel, weights: str) -> ConfigError:
    if not has_weights(model.file.parent):
        rule = "training starts from the weights on the Hub, which are not fetched yet: fetch them before the run"
        return ConfigError("model", model.typed, rule, [hub.command(Path(weights)) or "", "model.weights=null"])
    rule = "training starts from these weights; null starts from random ones"
    return ConfigError("model.weights", weights, rule, ["model.weights=null"])


def _has_tokenizer(model: OwnModel) -> bool:
    if model.folder is None:
        return False
    there = any((model.file.parent / name).is_file() for name in _TOKENIZER)
    return there or hub.command(model.file.parent) is not None


def _found(typed: str, folder: Path, *, fetching: bool) -> OwnModel:
    path = folder / files.expanded(typed)
    if hub.is_name(typed) and not path.exists():
        place = hub.snapshot(typed) or _fetched(typed, fetching=fetching)
        said = f"config.json of {typed} on the Hub, revision {place.name[:_DIGITS]}"
        content = _read(place / CONFIG, name_from(typed), said)
        return OwnModel(typed=typed, file=place / CONFIG, folder=str(place), content=content)
    if not path.exists():
        raise ConfigErrors([_no_such_path(typed, path)])
    whole = path.is_dir()
    file = path / CONFIG if whole else path
    if not file.is_file():
        raise ConfigErrors([_no_config(typed, path)])
    as_set = str(files.expanded(typed)) if typed.startswith("~") else typed.rstrip("/") or "/"
    name = name_from(str(files.real(path))) if whole else None
    content = _read(file, name, f"config.json of {as_set}")
    return OwnModel(typed=typed, file=file, folder=as_set if whole else None, content=content)


def _fetched(name: str, *, fetching: bool) -> Path:
    if not fetching:
        rule = "the recipe is from elsewhere and names a model on the Hub that is not in your cache: fetch it yourself"
        raise ConfigErrors([ConfigError("model", name, rule, [f"launch check model={name}"])])
    return hub.fetch(name)


def _read(file: Path, name: str | None, source: str) -> ModelFile:
    try:
        stat = file.stat()
        if stat.st_size > files.MOST_BYTES:
            rule = f"this is not a config.json: these have a few kilobytes, and it has {stat.st_size:,} bytes"
            raise ConfigErrors([ConfigError(str(file), None, rule)])
        return _read_once(file, name, source, stat.st_size, stat.st_mtime_ns)
    except (OSError, ValueError) as error:
        raise ConfigErrors([ConfigError(str(file), None, f"the file cannot be read: {unreadable(error)}")]) from None


@lru_cache(maxsize=64)  # The points of a sweep name the same few models.
def _read_once(file: Path, name: str | None, source: str, *state: int) -> ModelFile:
    data = files.read_bytes(file)
    digest = hashlib.sha256(data).hexdigest()[:_DIGITS]
    found = hugging_face.read(data.decode(), str(file), name=name, source=f"{source}, sha256 {digest}")
    raise_any(found.errors)
    return found


def _require_known_weights(model: OwnModel) -> None:
    folder, within = model.file.parent, model.content.within
    if model.folder is not None and within is not None and model._has_weights():
        rule = f"its weights cannot be used: {hugging_face.other_weights(within)} with null"
        raise ConfigErrors([ConfigError("model", model.typed, rule, ["model.weights=null"])])
    if model.folder is None or has_weights(folder) or hub.command(folder) is not None:
        return
    there = sorted(path.name for pattern in _UNREAD_WEIGHTS for path in folder.glob(pattern))
    if there:
        rule = f"its weights are in {there[0]}, but only {' and '.join(_WEIGHTS)} are read: null draws random ones"
        raise ConfigErrors([ConfigError("model", model.typed, rule, ["model.weights=null"])])


def _no_such_path(typed: str, path: Path) -> ConfigError:
    beside = [entry.name for entry in path.parent.iterdir() if entry.is_dir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, beside, n=_SHOWN)
    # Path drops a leading ./, without which a word may be an option or a name on the Hub.
    start = "model=./" if typed.startswith("./") else "model="
    ways = [f"{start}{Path(typed).with_name(name)}" for name in near]
    rule = "there is no such folder, and a name on the Hub is organization/model"
    return ConfigError("model", typed, rule, ways or ["launch show model"])


def _no_config(typed: str, path: Path) -> ConfigError:
    if (path / "adapter_config.json").is_file():
        rule = "it holds a LoRA adapter, not a model: name the folder of its base model"
        return ConfigError("model", typed, rule, ["model=./base_model"])
    below = sorted(file.parent for form in ("*", "snapshots/*") for file in path.glob(f"{form}/{CONFIG}"))
    ways = [f"model={typed.rstrip('/')}/{found.relative_to(path)}" for found in below[:_SHOWN]]
    rule = f"the folder has no {CONFIG}, which describes the model"
    return ConfigError("model", typed, rule, ways or ["launch show model"])
