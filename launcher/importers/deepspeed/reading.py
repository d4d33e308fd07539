"""The content of a ``ds_config.json``.

DeepSpeed reads HJSON: JSON in which comments, trailing commas and bare words may stand. A key that is there twice in
one block is an error there and here.
"""

import functools
import json
from typing import Any

from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.importers import _reading


def content_of(text: str, path: str) -> JsonObject:
    """The file's blocks; raises ConfigErrors where it is neither JSON nor HJSON, no object, or has a key twice."""
    return _reading.content_of(text, path, "a ds_config.json", functools.partial(_parsed, path))


def _parsed(path: str, text: str) -> Any:
    """Parse as JSON first, which takes a tenth of the time."""
    unique = functools.partial(_unique, path)
    try:
        return json.loads(text, object_pairs_hook=unique, parse_int=files.integer)
    except json.JSONDecodeError as error:
        if not text.lstrip().startswith(("{", "#", "/")):  # HJSON would take any line with a colon for a key.
            raise ValueError(error) from None
    import hjson  # Late, because few files need it.

    return hjson.loads(text, object_pairs_hook=unique, parse_int=files.integer)


def _unique(path: str, pairs: list[tuple[str, Any]]) -> JsonObject:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [key for key, _ in pairs]
        twice = ", ".join(sorted({key for key in names if names.count(key) > 1}))
        rule = f"DeepSpeed refuses a key that is there twice: {twice}"
        raise ConfigErrors([ConfigError(path, None, rule, ["keep one of the two"])])
    return found
