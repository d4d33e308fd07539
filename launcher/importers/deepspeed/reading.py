"""A ``ds_config.json`` while it is read: its values, the settings so far, and where each of its keys ends.

DeepSpeed reads HJSON: JSON in which comments, trailing commas and bare words may stand. A key that is there twice in
one block is an error there and here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.config.ledger import OPEN, Ledger, Settings

AUTO = "auto"
"""The word for what the program that reads the file fills in."""

_FLAGS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False, "on": True, "off": False}
"""Words that DeepSpeed's own reader of blocks (pydantic) takes for true and false."""

_COUNTED = 1000  # From here on a whole number that is written as 1e3 is a count.
_SHOWN = 40  # Characters of a text that is not understood in a message.


@dataclass(slots=True)
class Reading:
    """Findings so far."""

    path: str  # The file, for messages.
    ledger: Ledger  # Where each key ends.
    choose: dict[str, str] = field(default_factory=dict)  # Chosen groups.
    settings: Settings = field(default_factory=dict)  # Keys of the run and their values.
    # Values that DeepSpeed refuses, and that no run follows from.
    errors: list[ConfigError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # Sentences about the file beside its keys.

    def value(self, key: str) -> Any:
        """The value of a key; None where it is absent, null or left open: ``auto``, ``???``."""
        value = self.ledger.values.get(key)
        return None if value in (AUTO, OPEN) else value

    def absent(self, key: str) -> bool:
        """True if the file says nothing of a key, so that DeepSpeed's default holds; ``auto`` says something."""
        return self.ledger.values.get(key) is None

    def number(self, key: str) -> float | None:
        """The number of a key; anything else is an error."""
        value = self.value(key)
        if value is None or _is_number(value):
            return value if value is None or isinstance(value, int) else float(value)
        self.wrong(key, "is a number in ds_config.json")
        return None

    def count(self, key: str, least: int = 0) -> int | None:
        """The whole number of a key, which may be written as ``5e8``."""
        value = self.number(key)
        if value is None:
            return None
        if value != int(value) or value < least:
            self.wrong(key, f"is a whole number of at least {least} in ds_config.json")
            return None
        return int(value)

    def flag(self, key: str) -> bool:
        """The switch of a key; off where it is not there."""
        value = self.value(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        known = _FLAGS.get(str(value).lower())
        if known is None:
            self.wrong(key, "is true or false in ds_config.json", [f'"{key.rpartition(".")[2]}": true'])
        return bool(known)

    def wrong(self, key: str, rule: str, ways: Iterable[str] = ()) -> None:
        """Enter an error of a key's value."""
        self.errors.append(ConfigError(f"{self.path}: {key}", self.ledger.values.get(key), rule, list(ways)))
        self.ledger.leave(key, "its value is an error")

    def require_block(self, key: str, example: str) -> None:
        """Enter an error where a block of keys is anything else."""
        if self.value(key) not in (None, {}):
            self.wrong(key, "is a block of keys in ds_config.json", [f'"{key}": {{{example}}}'])

    def say_number(self, key: str, setting: str) -> None:
        """Say the number of a key, where it has one."""
        if (number := self.number(key)) is not None:
            self.say(key, {setting: number})

    def say_count(self, key: str, setting: str, least: int = 0) -> None:
        """Say the whole number of a key, where it has one."""
        if (number := self.count(key, least)) is not None:
            self.say(key, {setting: number})

    def say_flag(self, key: str, setting: str) -> None:
        """Say the switch of a key, where it has one."""
        if self.value(key) is not None:
            self.say(key, {setting: self.flag(key)})

    def say(self, key: str, settings: Mapping[str, Any]) -> None:
        """Settings that say a key."""
        self.settings |= settings
        self.ledger.say(key, *settings)

    def keep(self, key: str) -> None:
        """Hand a key on to DeepSpeed."""
        value = self.ledger.values[key]
        if isinstance(value, float) and value.is_integer() and value >= _COUNTED:
            value = int(value)  # JSON's 2e8 is a count of elements.
        self.settings[f"backend.extra.{key}"] = value
        self.ledger.keep(key)

    def keep_inside(self, block: str) -> None:
        """Hand the open keys of a block on to DeepSpeed."""
        for key in list(self.inside(block)):
            self.keep(key)

    def keep_unless(self, key: str, usual: object) -> None:
        """Hand a key on, or enter it as default where its value is the one that DeepSpeed has without it."""
        if not self.ledger.is_open(key):
            return
        if self.value(key) == usual:
            self.ledger.default(key)
        else:
            self.keep(key)

    def leave_unless(self, key: str, usual: object, effect: str) -> None:
        """Enter a key as left out, or as default where its value is the one that DeepSpeed has without it."""
        if self.ledger.is_open(key):
            if self.value(key) == usual:
                self.ledger.default(key)
            else:
                self.ledger.leave(key, effect)

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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class _TwiceError(ValueError):
    """A block has a key more than once."""


def content_of(text: str, path: str) -> JsonObject:
    """The file's blocks; raises ConfigErrors where it is neither JSON nor HJSON, no object, or has a key twice."""
    try:
        found = _parsed(text.removeprefix("\ufeff"))
        files.check_plain(found)
    except RecursionError:
        rule = f"a ds_config.json is JSON, and this is not: it is nested deeper than {files.DEEPEST}"
        raise ConfigErrors([ConfigError(path, text[:_SHOWN], rule)]) from None
    except _TwiceError as error:
        rule = f"DeepSpeed refuses a key that is there twice: {error}"
        raise ConfigErrors([ConfigError(path, None, rule, ["keep one of the two"])]) from None
    except ValueError as error:
        rule = f"a ds_config.json is JSON, and this is not: {error}"
        raise ConfigErrors([ConfigError(path, text[:_SHOWN], rule)]) from None
    if not isinstance(found, dict):
        raise ConfigErrors([ConfigError(path, text[:_SHOWN], "a ds_config.json is one JSON object: {...}")])
    return found


def _parsed(text: str) -> Any:
    """JSON where it is that, for it is read in a tenth of the time."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_int=files.integer)
    except json.JSONDecodeError as error:
        if not text.lstrip().startswith(("{", "#", "/")):  # HJSON would take any line with a colon for a key.
            raise ValueError(error) from None
    import hjson  # Late, because few files need it.

    return hjson.loads(text, object_pairs_hook=_unique, parse_int=files.integer)


def _unique(pairs: list[tuple[str, Any]]) -> JsonObject:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [key for key, _ in pairs]
        raise _TwiceError(", ".join(sorted({key for key in names if names.count(key) > 1})))
    return found
