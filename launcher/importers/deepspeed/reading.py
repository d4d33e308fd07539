"""A ``ds_config.json`` while it is read.

DeepSpeed reads HJSON: JSON in which comments, trailing commas and bare words may stand. A key that is there twice in
one block is an error there and here.
"""

import json
from dataclasses import dataclass
from typing import Any

from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.config.ledger import OPEN
from launcher.importers import _reading

AUTO = "auto"  # The word for what the program that reads the file fills in.
_COUNTED = 1000  # From here on a whole number that is written as 1e3 is a count.
_SHOWN = 40  # Characters of a text that is not understood in a message.


@dataclass(slots=True)
class Reading(_reading.Reading):
    """Findings so far, and keys that are handed on to DeepSpeed."""

    file: str = "ds_config.json"
    open_words: tuple[str, ...] = (AUTO, OPEN)

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
