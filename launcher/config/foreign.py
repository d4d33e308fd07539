"""Helpers to read another program's file: its JSON, a word by a table, a value in a message, a name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors

_LONGEST = 100
"""Characters of a value in a message; an argument may hold a whole list of files."""


def shown(key: str, value: object) -> str:
    """``key=value`` for a message, cut where it is long."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return f"{key}={text if len(text) <= _LONGEST else text[: _LONGEST - 3] + '...'}"


def word_in(table: Mapping[str, str], value: object) -> str | None:
    """The table's entry for a word; None for a word that is not in the table, and for anything that is no word."""
    return table.get(value) if isinstance(value, str) else None


def name_from(path: str) -> str:
    """A model's name from a file's or a model's: its last part, in characters that need no quotes."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(path).name).strip("-.") or "imported"


def json_mapping(text: str, path: str, what: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ConfigErrors: It is not JSON, or not an object.
    """
    try:
        content = files.parse_json(text)
    except ValueError as error:
        raise ConfigErrors([ConfigError(path, text[:40], f"{what} is JSON, and this is not: {error}")]) from None
    if not isinstance(content, dict):
        raise ConfigErrors([ConfigError(path, text[:40], f"{what} is one JSON object: {{...}}")])
    return content
