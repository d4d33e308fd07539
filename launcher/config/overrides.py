"""Overrides as the user types them: parsed, checked against the catalog, and explained if they are wrong.

Hydra's own advice for an unknown key, ``+precison=fp8``, would hide the misspelling, so the keys are checked here.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from typing import get_args

from launcher.base import registry, secret
from launcher.base.errors import ConfigError
from launcher.base.frozen import dataclass
from launcher.config import synonyms
from launcher.config.catalog import Catalog
from launcher.spec.parse import OPEN_NODES, accepts, closest, kinds, known_keys, ways_out

_WAYS = 3  # The most ways out shown for one word.
_NO_TEXT = re.compile(r"[\x00\ud800-\udfff]")
"""Characters that no path can contain: a byte that is not UTF-8 arrives as half of a surrogate pair."""

_TOO_LONG = re.compile(r"[0-9]{309}")  # More digits than the largest floating-point number has.
_SHOWN = 40  # Characters of such a word quoted in a message.
_SWEEP = re.compile(r"^(range|interval|choice|glob|sort|shuffle|tag)\(|^[^\[{'\"(]*,")
_WORD = re.compile(r"(?!\.[0-9])[A-Za-z_/.~][A-Za-z0-9_/.:@+-]*\Z")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?\Z")
_LIST = re.compile(r"\[[^\[\]{}()'\"\\$:=]*\]\Z")
_QUOTED = re.compile(r"'[^'\\$]*'\Z")
_NEXT_WORD = re.compile(r"^[^'\"\[{]*\s([a-z_.]+)=")
_SPECIAL = {"true": True, "false": False, "null": None}
_NOT_PLAIN = frozenset({"nan", "inf", "true", "false", "null"})


type Scalar = bool | int | float | str | None
type Plain = Scalar | list[Scalar]


@dataclass(frozen=True, slots=True)
class Override:
    """One ``key=value``; ``group`` distinguishes the choice of an option from the setting of a key."""

    text: str
    key: str
    value: str
    group: bool

    @property
    def hydra(self) -> str:
        """The spelling for Hydra, with option names quoted (``zero=3`` is not a string to it).

        Keys get ``++``, since one may be below an open node, or missing in a user's own option and inherited.
        """
        return f"{self.key}='{self.value}'" if self.group else f"++{self.key}={self.value}"

    @property
    def sweeps(self) -> bool:
        """True if the value names several points."""
        return bool(_SWEEP.match(self.value)) or (self.group and "*" in self.value)

    def plain(self) -> tuple[bool, Plain]:
        """Return ``(True, value)`` if the value can be parsed without Hydra's grammar, else ``(False, None)``."""
        if self.group and is_own_model(self.value) and not self.sweeps:
            return True, self.value
        if _QUOTED.match(self.value):
            return True, self.value[1:-1]
        if not _LIST.match(self.value):
            return _scalar(self.value)
        texts = self.value[1:-1].split(",") if self.value != "[]" else []
        items = [_scalar(text.strip()) for text in texts]
        return (True, [item for _, item in items]) if all(ok for ok, _ in items) else (False, None)


def _scalar(text: str) -> tuple[bool, Scalar]:
    if text.lower() in _SPECIAL:
        return True, _SPECIAL[text.lower()]
    if _INTEGER.match(text):
        return True, int(text)
    if _FLOAT.match(text):
        return True, float(text)
    if _WORD.match(text) and text.lower() not in _NOT_PLAIN:
        return True, text
    return False, None


def read(texts: Iterable[str], catalog: Catalog) -> tuple[list[Override], list[ConfigError]]:
    """Check keys and option names; return the valid overrides, in order, and an error for each other word."""
    overrides: list[Override] = []
    errors: list[ConfigError] = []
    texts = list(texts)
    for text in texts:
        found = _read_one(text, catalog)
        if isinstance(found, Override):
            overrides.append(found)
        else:
            errors.append(found)
    strays = [text for text in texts if is_stray(text)]
    if strays and any(override.key == "script" for override in overrides):
        words = [error.path if error.found is None else f"{error.path}={error.found}" for error in errors]
        pairs = zip(words, errors, strict=True)
        errors = [_or_of_the_script(error, strays) if word in strays else error for word, error in pairs]
    return overrides, errors


def is_stray(text: str) -> bool:
    """True if a word does not look like an override: no ``=``, or a key without a dot that the launcher lacks."""
    key, equals, _ = text.partition("=")
    bare = key.lstrip("+")
    is_group = bare == "recipe" or bare in _groups()
    return not equals or ("." not in bare and bare not in known_keys() and not is_group and not _is_open(bare))


@cache
def _groups() -> frozenset[str]:
    return frozenset(prefix for known in known_keys() for prefix in accumulate(known.split(".")[:-1], "{}.{}".format))


def _or_of_the_script(error: ConfigError, strays: list[str]) -> ConfigError:
    rule = f"{error.rule}; the script's own arguments come after --"
    ways = [way for way in error.way_out if way != "launch --help"]
    return ConfigError(error.path, error.found, rule, [f"-- {shlex.join(strays)}", *ways])


def _read_one(text: str, catalog: Catalog) -> Override | ConfigError:
    key, equals, value = text.partition("=")
    if _NO_TEXT.search(text):
        return ConfigError(key, value or None, "must be UTF-8 text without NUL characters")
    if digits := _TOO_LONG.search(text):
        return ConfigError(key, f"{value[:_SHOWN]}...", f"a number must have fewer than {len(digits[0])} digits")
    if key.startswith("~") or "@" in key:
        return ConfigError(key, value or None, "keys cannot be deleted or moved to another package")
    if not equals:
        ways = bare_word_ways(text, catalog, list(registry.names("commands")))
        return ConfigError(text, None, "an override is group=option or group.key=value", ways or ["launch --help"])
    if not key:
        return ConfigError(text, None, "a group or key must precede =, without a space", ["launch --help"])
    if (further := _NEXT_WORD.match(value)) and further[1] in (*catalog.groups, *known_keys()):
        return ConfigError(key, value, "one word holds one override: remove the quotes that join them", [text])
    bare = key.lstrip("+")
    if key != bare and not _is_open(bare):
        rule = f"`+` creates a key only below {', '.join(OPEN_NODES)}"
        ways = synonyms.ways(bare, value) or [f"{near}={value}" for near in _near_keys(bare, catalog)]
        return ConfigError(key, value, rule, ways)
    if bare in catalog.groups:
        return _choice(text, bare, value, catalog)
    if bare not in known_keys() and not _is_open(bare):
        return _unknown_key(bare, value, catalog)
    return Override(text, bare, value, group=False)


def _unknown_key(key: str, value: str, catalog: Catalog) -> ConfigError:
    if key == synonyms.BEST_KEY:
        return synonyms.best_refused(value)
    rule = "there is no such group or key"
    variable = key.rpartition(".")[2]
    if secret.of_name(key) and variable.isidentifier():
        rule += ", and a secret is not a setting: let the job inherit the variable by its name"
        return ConfigError(key, value, rule, [f"cluster.pass_environment=[{variable.upper()}]"])
    if value == "best" and closest(key, [synonyms.BEST_KEY]):
        return ConfigError(key, value, rule, [synonyms.BEST])
    above, _, below = key.rpartition(".")
    is_entry = accepts(above, {below: _read_as_typed(key, value)})
    ways = [f"{above}={{{below}:{value}}}"] if is_entry else other_words(key, value, catalog)
    if not ways:
        names = _near_keys(key, catalog)
        taking = [name for name in names if value in catalog.groups.get(name, ())]
        if not isinstance(_read_as_typed(key, value), str):  # Text keys accept any text.
            taking += [name for name in names if _takes(name, value)]
        ways = [f"{name}={value}" for name in taking or names]
    return ConfigError(key, value, rule, ways)


def other_words(key: str, value: str, catalog: Catalog) -> list[str]:
    """Return overrides for an unknown key that another tool has; values that launch's key refuses are replaced.

    Empty if neither another tool's word nor a key or an option of this name is known.
    """
    bare = synonyms.plain(key)
    same = [*(group for group in catalog.groups if group == bare), *_of_name(bare)]
    switched_on = [f"{group}={bare}" for group, options in catalog.groups.items() if bare in options]
    found = synonyms.ways(key, value) or switched_on or [f"{name}={value}" for name in same]
    return list(dict.fromkeys(each for way in found for each in _taken(way, catalog)))[:_WAYS]


def _taken(way: str, catalog: Catalog) -> list[str]:
    """The override if its key accepts the value, else similar ones."""
    key, _, value = way.partition("=")
    if " " in way or value in ("", "..."):
        return [way]
    if key in catalog.groups:
        found = _choice(way, key, value, catalog)
        return list(found.way_out) if isinstance(found, ConfigError) else [way]
    if key not in known_keys() or _takes(key, value) or value.startswith(("[", "{", "'", '"')):
        return [way]
    ways = synonyms.options(key, value)
    return ways or [each for each in ways_out(key, _read_as_typed(key, value)) if not each.endswith("=null")]


def _takes(key: str, value: str) -> bool:
    """True if the typed value fits the type and range of the key."""
    return accepts(key, _read_as_typed(key, value))


def _read_as_typed(key: str, value: str) -> object:
    is_plain, read = Override("", key, value, group=False).plain()
    return read if is_plain else value


def is_own_model(value: str) -> bool:
    """True if a choice of ``model`` is not an option but a path or a Hub name: with a slash, ``~``, ``.`` or ``..``."""
    return "/" in value or value.startswith("~") or value in (".", "..")


def _choice(text: str, group: str, value: str, catalog: Catalog) -> Override | ConfigError:
    value = value.strip("'\"")
    if group == "model" and is_own_model(value):
        return Override(text, group, value, group=True)
    override = Override(text, group, value, group=True)
    options = catalog.groups[group]
    if value in options or override.sweeps:
        return override
    if group == "recipe" and ("/" in value or value.endswith((".yaml", ".yml"))):
        return _recipe_elsewhere(override, catalog)
    if f"{group}={value}" == synonyms.AUTO:
        return ConfigError(group, value, synonyms.AUTO_ALONE, ["launch plan", f"{group}=selective", f"{group}=full"])
    word = synonyms.plain(value)
    near = [each for each in options if word and each.startswith(word)][:_WAYS] or closest(word, list(options))
    ways = synonyms.options(group, value) or [f"{group}={option}" for option in near]
    if group == "model" and (catalog.folder / value).is_dir():
        ways = [f"model=./{value}", *ways]
    keys = [key for key in known_keys() if key.startswith(f"{group}.")]
    rule = f"there is no such option; {group} has {', '.join(options)}"
    rule = synonyms.absent(f"{group}={value}") or rule
    if f"{group}.name" in keys and group == "run":
        return ConfigError(group, value, rule, [f"run.name={value}"])
    others = "launch recipe list" if group == "recipe" else f"launch show {group}"
    return ConfigError(group, value, rule, ways or [others])


def _recipe_elsewhere(override: Override, catalog: Catalog) -> Override | ConfigError:
    if "://" in override.value:
        rule = "a recipe must be fetched before it is used, so that later runs use the same one"
        return ConfigError("recipe", override.value, rule, [f"launch recipe fetch {override.value}"])
    if catalog.find_recipe(override.value) is None:
        rule = "there is no such file, and no installed package offers this recipe"
        return ConfigError("recipe", override.value, rule, ["launch recipe list"])
    return override


def bare_word_ways(text: str, catalog: Catalog, verbs: Sequence[str]) -> list[str]:
    """Return suggestions for a word without ``=``: its group, an option, a verb, or ``launch show`` of a group."""
    bare = text.lstrip("-")
    ways = [f"{group}={bare}" for group, options in catalog.groups.items() if bare in options]
    ways += [option for word, option in synonyms.table()["switches"].items() if word == bare.lower()]
    if not ways:
        names = [name.rstrip("_") for name in verbs]
        ways = [f"launch {verb}" for verb in dict.fromkeys([*synonyms.verbs(bare), *closest(bare, names)])]
        ways += [f"launch show {group}" for group in closest(bare, list(catalog.groups))]
    return ways


def _near_keys(key: str, catalog: Catalog) -> list[str]:
    return _of_name(key)[:_WAYS] or closest(key, [*catalog.groups, *known_keys()])


def _of_name(key: str) -> list[str]:
    """The keys of all groups with the same last part."""
    tail = synonyms.plain(key.rpartition(".")[2])
    return sorted(name for name in known_keys() if name.rpartition(".")[2] == tail)


def takes_text(key: str) -> bool:
    """True if a key may hold any text, or is unknown."""
    kind = kinds().get(key, str)
    return kind is str or str in get_args(kind)


def _is_open(key: str) -> bool:
    return any(key == node or key.startswith(f"{node}.") for node in OPEN_NODES)
