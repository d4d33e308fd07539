"""Another program's file of keys and values while it is read: the settings so far, and where each of its keys ends."""

import contextlib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.base.typed import is_number
from launcher.config import safe_yaml
from launcher.config.ledger import OPEN, Ledger, Settings

_NUMBER = re.compile(r"\s*[-+]?(\d{1,18}(\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?\s*\Z")
_FRACTION = re.compile(r"[.eE]")
_FLAGS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False, "on": True, "off": False}
"""Words that readers of such files (pydantic) take for true and false."""

SHOWN = 40
"""Characters of a text that is not understood in a message."""


@dataclass(slots=True)
class KeyReader:
    """Findings so far."""

    path: str  # The file, for messages.
    ledger: Ledger  # Where each key ends.
    file: str = "the file"  # What the format calls such a file, for messages.
    open_words: tuple[str, ...] = (OPEN,)  # Words of a value that the file leaves open.
    lenient: bool = False  # True where the program takes a number in quotes, as pydantic does.
    choose: dict[str, str] = field(default_factory=dict)  # Chosen groups.
    settings: Settings = field(default_factory=dict)  # Keys of the run and their values.
    # Values that the program refuses, and that no run follows from.
    errors: list[ConfigError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # Sentences about the file beside its keys.

    def value(self, key: str) -> Any:
        """The value of a key; None where it is absent, null or left open (``???``)."""
        value = self.ledger.values.get(key)
        return None if isinstance(value, str) and value in self.open_words else value

    def listed(self, key: str) -> list[Any]:
        """The values of a key that holds a list of them, or one."""
        value = self.value(key)
        return value if isinstance(value, list) else [value]

    def absent(self, key: str) -> bool:
        """True if the file says nothing of a key, so that its program's default holds; an open word says something."""
        return self.ledger.values.get(key) is None

    def plain(self, key: str) -> Any:
        """The value of a key, a number also where it is in quotes and the program takes that."""
        value = self.value(key)
        if self.lenient and isinstance(value, str) and _NUMBER.match(value):
            return float(value) if _FRACTION.search(value) else int(value)
        return value

    def number(self, key: str) -> float | None:
        """The number of a key; anything else is an error."""
        value = self.plain(key)
        if value is None or is_number(value):
            return value if value is None or isinstance(value, int) else float(value)
        self.wrong(key, f"is a number in {self.file}")
        return None

    def count(self, key: str, least: int = 0) -> int | None:
        """The whole number of a key, which may be written as ``5e8``."""
        value = self.number(key)
        if value is None:
            return None
        if value != int(value) or value < least:
            self.wrong(key, f"is a whole number of at least {least} in {self.file}")
            return None
        return int(value)

    def flag(self, key: str) -> bool:
        """The switch of a key; off where it is not there."""
        value = self.value(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        known = _FLAGS.get(str(value).lower())
        if known is None:
            self.wrong(key, f"is true or false in {self.file}", [f'"{key.rpartition(".")[2]}": true'])
        return bool(known)

    def wrong(self, key: str, rule: str, ways: Iterable[str] = ()) -> None:
        """Enter an error of a key's value, once."""
        error = ConfigError(f"{self.path}: {key}", self.ledger.values.get(key), rule, list(ways))
        if error not in self.errors:
            self.errors.append(error)
        self.ledger.leave(key, "its value is an error")

    def require_block(self, key: str, example: str) -> None:
        """Enter an error where a block of keys is anything else."""
        if self.value(key) not in (None, {}):
            self.wrong(key, f"is a block of keys in {self.file}", [f'"{key}": {{{example}}}'])

    def say_number(self, key: str, setting: str, times: int = 1) -> None:
        """Say the number of a key, where it has one, so many times."""
        if (number := self.number(key)) is not None:
            self.say(key, {setting: number * times})

    def say_count(self, key: str, setting: str, least: int = 0, most: int | None = None) -> None:
        """Say the whole number of a key, where it has one, or the ``most`` that the setting takes."""
        if (number := self.count(key, least)) is not None:
            self.say(key, {setting: number if most is None else min(number, most)})

    def say_flag(self, key: str, setting: str) -> None:
        """Say the switch of a key, where it has one."""
        if self.value(key) is not None:
            self.say(key, {setting: self.flag(key)})

    def say(self, key: str, settings: Mapping[str, Any]) -> None:
        """Settings that say a key."""
        self.settings |= settings
        self.ledger.say(key, *settings)

    def say_together(self, settings: Mapping[str, Any], *keys: str) -> None:
        """Settings that several keys say together."""
        self.settings |= settings
        for key in keys:
            self.ledger.say(key, *settings)

    def default(self, *blocks: str) -> None:
        """Enter open keys of some blocks that say the default here too."""
        self.ledger.default(*self.inside(*blocks))

    def idle(self, why: str, *blocks: str) -> None:
        """Enter open keys of some blocks as left out without effect."""
        for key in self.inside(*blocks):
            self.ledger.leave(key, f"no effect: {why}", matters=False)

    def leave(self, effect: str, *blocks: str) -> None:
        """Enter open keys of some blocks as left out, with an effect on the training."""
        for key in self.inside(*blocks):
            self.ledger.leave(key, effect)

    def inside(self, *blocks: str) -> Iterator[str]:
        """Open keys of some blocks, and those that are such a key themselves."""
        for key in self.ledger.values:
            if self.ledger.is_open(key) and any(key == block or key.startswith(f"{block}.") for block in blocks):
                yield key

    def has(self, block: str) -> bool:
        """True if the file has a block of this name, or anything in its place."""
        return any(key == block or key.startswith(f"{block}.") for key in self.ledger.values)


def content_of(text: str, path: str, name: str, parse: Callable[[str], object] | None = None) -> JsonObject:
    """A file's nested values; ``name`` is what its program calls it. Raises ConfigErrors where it is none.

    It is TOML, JSON or YAML by its ending, unless ``parse`` reads a JSON of its program's own.
    """
    text = text.removeprefix("\ufeff")
    ending = path.rpartition(".")[2] if parse is None else "json"
    parse = parse or _READERS.get(ending)
    try:
        found = safe_yaml.loads(text, path, foreign=True) if parse is None else parse(text)
        files.check_plain(found)
    except (ValueError, RecursionError) as error:
        problem = error if isinstance(error, ValueError) else f"it is nested deeper than {files.DEEPEST}"
        rule = f"{name} is {ending.upper()}, and this is not: {problem}"
        raise ConfigErrors([ConfigError(path, text[:SHOWN], rule)]) from None
    if not isinstance(found, dict):
        rule = f"{name} is a mapping of keys, and this is {'not' if text.strip() else 'empty'}"
        raise ConfigErrors([ConfigError(path, text[:SHOWN] or None, rule)])
    return found


_READERS: Mapping[str, Callable[[str], object]] = {"toml": tomllib.loads, "json": files.parse_json}


def module_beside(path: str, module: str, level: int) -> Iterator[tuple[str, str]]:
    """The text and the path of a Python module, in each of the folders around a file that has one of this name.

    ``level`` counts the dots before the name of a relative import, which stands in one folder.
    """
    around = Path(path).absolute().parents
    for folder in around[level - 1 : level] if level else around[:_AROUND]:
        whole = folder.joinpath(*module.split("."))
        for file in (whole.with_suffix(".py"), whole / "__init__.py"):
            with contextlib.suppress(OSError, ValueError):
                yield files.read_text(file, handed=True), str(file)


_AROUND = 6  # Folders from a recipe of these programs to the one that holds the program's package, and one more.


def flat(values: Mapping[str, Any], prefix: str = "") -> JsonObject:
    """Every leaf by its dotted path; mappings inside a list are parts, too (``datasets.0.path``)."""
    found: JsonObject = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
            value = {str(place): each for place, each in enumerate(value)}
        found |= flat(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value}
    return found


def parts(values: Mapping[str, Any], block: str) -> list[str]:
    """The paths of a list's parts in flat values, in their order: ``datasets.0``, ``datasets.1``."""
    heads = (key.removeprefix(f"{block}.").split(".")[0] for key in values if key.startswith(f"{block}."))
    return [f"{block}.{place}" for place in dict.fromkeys(head for head in heads if head.isdigit())]
