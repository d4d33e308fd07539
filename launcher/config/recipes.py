"""Recipes: shared runs as data. A recipe is read before Hydra and becomes overrides that precede the user's own.

So a recipe can set only what a user could type, and precedence needs no extra rule: later overrides win. If the user
chooses a group, the recipe's choice and settings of that group are dropped, since they were written for another option.
A recipe may come from anywhere: it is read as plain YAML without tags, its keys and values are checked here before they
are parsed as overrides, and it cannot interpolate.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from launcher.base.errors import ConfigError, ConfigErrors, raise_any
from launcher.base.frozen import dataclass
from launcher.base.terminal import CONTROL
from launcher.config import open_values, safe_yaml
from launcher.config.catalog import Catalog
from launcher.config.overrides import Override, read
from launcher.spec.parse import known_keys, texts

SCHEMA = 1
_KEYS = ("schema", "summary", "source", "choose", "set", "sweep")
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_BARE = re.compile(r"[A-Za-z0-9_/.:@+-]+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One recipe: the options that it chooses, the keys that it sets, and its axes."""

    name: str
    summary: str
    source: str
    choose: Mapping[str, str]
    set: Mapping[str, Any]
    sweep: Mapping[str, Sequence[Any]]

    def overrides(self) -> list[str]:
        """Return the recipe as typed overrides, choices first."""
        return [*(f"{group}={option}" for group, option in self.choose.items()), *self.settings()]

    def settings(self) -> list[str]:
        """Return the keys that it sets, as typed."""
        return [f"{key}={literal(value)}" for key, value in self.set.items()]

    def sweeps(self) -> list[str]:
        """Return its axes, as typed after ``-m``."""
        return [f"{key}=choice({','.join(map(literal, values))})" for key, values in self.sweep.items()]


def expand(overrides: Sequence[Override], catalog: Catalog) -> list[Override]:
    """Return a recipe's overrides followed by the user's own; raises ConfigErrors if the recipe is invalid.

    If the user chooses a group, the recipe's choice and settings in it are dropped (docs/contract/commands.md).
    """
    found = named(overrides, catalog)
    own = [override for override in overrides if not (override.group and override.key == "recipe")]
    return own if found is None else [*words_of(found[1], found[1].overrides(), catalog), *own]


def words_of(recipe: Recipe, texts: Sequence[str], catalog: Catalog) -> list[Override]:
    """Return some of a recipe's words as overrides; raises ConfigErrors if one names something that does not exist."""
    found, errors = read(texts, catalog)
    if errors:
        where = f"recipe={recipe.name}"
        raise ConfigErrors(ConfigError(f"{where}: {e.path}", e.found, e.rule, e.way_out) for e in errors)
    return found


def named(overrides: Sequence[Override], catalog: Catalog) -> tuple[Path, Recipe] | None:
    """Return the file of the recipe that a command line names, and the recipe without what other words override.

    Choosing a group removes all of the recipe's settings in it; setting a key removes its value or sweep, except for a
    mapping, to which words only add. Raises ConfigErrors if there is no such recipe, or it is invalid.
    """
    names = [override.value for override in overrides if override.group and override.key == "recipe"]
    if not names:
        return None
    path = catalog.recipe(names[-1])
    recipe = load(path)
    chosen = {override.key for override in overrides if override.group}
    keys = {override.key for override in overrides}
    keys |= open_values.displaced_lengths((override.key, override.value) for override in overrides)

    def left(section: Mapping[str, Any]) -> dict[str, Any]:
        there = {key: value for key, value in section.items() if key.partition(".")[0] not in chosen}
        return {key: value for key, value in there.items() if key not in keys or isinstance(value, dict)}

    return path, replace(recipe, choose=left(recipe.choose), set=left(recipe.set), sweep=left(recipe.sweep))


def load(path: Path) -> Recipe:
    """Return a recipe file's content, cached while the file is unchanged. Reading it executes and fetches nothing.

    Raises ConfigErrors: The file cannot be read, is too large, or is not a recipe.
    """
    try:
        stat = path.stat()
    except OSError:
        return _loaded(path)  # It reports why the file cannot be read.
    return _loaded(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=64)
def _loaded(path: Path, *state: int) -> Recipe:
    return check(safe_yaml.load(path), str(path), path.stem)


def check(content: object, where: str, name: str = "") -> Recipe:
    """Return the recipe in plain data; raises ConfigErrors if the data is not a recipe."""
    if not isinstance(content, dict):
        rule = f"a recipe is a mapping of {', '.join(_KEYS)}"
        found = "nothing" if content is None else str(content)[:40]
        raise ConfigErrors([ConfigError(where, found, rule, ["launch recipe save mine model=tiny"])])
    if not content.keys() & _KEYS:
        rule = f"this is no recipe: it has none of {', '.join(_KEYS)}; another program's file is imported"
        raise ConfigErrors([ConfigError(where, None, rule, ["launch import --help"])])
    errors = [
        ConfigError(f"{where}: {key}", content[key], f"a recipe holds only {', '.join(_KEYS)}")
        for key in content
        if key not in _KEYS
    ]
    if content.get("schema") != SCHEMA:
        errors.append(ConfigError(f"{where}: schema", content.get("schema"), f"must be {SCHEMA}", ["schema: 1"]))
    if not isinstance(content.get("summary"), str):
        errors.append(ConfigError(f"{where}: summary", content.get("summary"), "one line of text is required"))
    for key in ("choose", "set", "sweep"):
        if not isinstance(content.get(key, {}), dict):
            errors.append(ConfigError(f"{where}: {key}", content[key], "must be a mapping"))
    errors = errors or _value_errors(where, content)
    raise_any(errors)
    return Recipe(
        name=name,
        summary=content["summary"],
        source=str(content.get("source", "")),
        choose={str(group): str(option) for group, option in content.get("choose", {}).items()},
        set=content.get("set", {}),
        sweep=content.get("sweep", {}),
    )


def _value_errors(where: str, content: Mapping[str, Mapping[str, object]]) -> list[ConfigError]:
    errors = []
    for section in ("choose", "set", "sweep"):
        for key, value in content.get(section, {}).items():
            path = f"{where}: {section}: {key}"
            if rule := _key_rule(section, key):
                errors.append(ConfigError(path, value, rule))
            elif "${" in f"{key} {value}":
                errors.append(ConfigError(path, value, "a recipe cannot interpolate: ${...} is not allowed"))
            elif section == "choose" and not isinstance(value, str | int):
                errors.append(ConfigError(path, value, "must be the name of an option"))
            elif section == "sweep" and not (isinstance(value, list) and value):
                errors.append(ConfigError(path, value, "must be a list of values", [f"{key}: [{value}]"]))
    if any(map(CONTROL.search, texts(content))):
        errors.append(ConfigError(where, None, "each text must be a single line without control characters"))
    return errors


def _key_rule(section: str, key: str) -> str | None:
    """The rule that a key breaks, or None; a key that reads as another one could bypass the trust checks."""
    if section == "choose" and (not key.isidentifier() or key in known_keys() or key == "recipe"):
        return "choose takes names of groups"
    if not _KEY.match(key) or key == "recipe":
        return "must be a group or a key, without + and ="
    return None


def literal(value: object) -> str:
    """Return a value in Hydra's override grammar, quoted if needed, so that parsing gives the same value."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(literal(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{literal(item)}" for key, item in value.items()) + "}"
    text = str(value)
    if _BARE.match(text) and not text[0].isdigit() and text.lower() not in ("true", "false", "null", "nan", "inf"):
        return text
    # In Hydra's quotes a backslash is special only before a quote, including the closing one.
    return "'" + re.sub(r"(\\*)('|\Z)", lambda at: at[1] * 2 + ("\\'" if at[2] else ""), text) + "'"
