"""The content of a ``ds_config.json``.

DeepSpeed reads HJSON: JSON in which comments, trailing commas and bare words may stand. A key that is there twice in
one block is an error there and here.
"""

import json
from typing import Any

from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject

_SHOWN = 40  # Characters of a text that is not understood in a message.


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
