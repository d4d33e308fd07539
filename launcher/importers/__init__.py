"""Existing configurations as overrides and as a recipe: one module a format, with ``read(text, path) -> Imported``.

Reading is pure. What a file says that changes memory or the result and has no setting here is named, never ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.config.recipes import SCHEMA, literal
from launcher.errors import ConfigError, ConfigErrors

_LONGEST = 100
"""Characters of a value in a message; an argument may hold a whole list of files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A foreign file in our words.

    Attributes:
        overrides: Choices and settings as they are typed, choices first.
        recipe: The same as a recipe (docs/contract.md).
        not_understood: Settings without a counterpart here, each with its value and, where it is known, what to do.
        accumulation: The micro-batches of a step on one rank, where the file says them: here they follow from the
            global batch and the data ranks, and may come out otherwise.
    """

    overrides: tuple[str, ...]
    recipe: dict[str, Any]
    not_understood: tuple[str, ...]
    accumulation: int | None = None


def imported(
    *,
    summary: str,
    source: str,
    choose: Mapping[str, str],
    settings: Mapping[str, Any],
    not_understood: Iterable[str],
    accumulation: int | None = None,
) -> Imported:
    """Put choices and settings into both forms."""
    chosen = [f"{group}={option}" for group, option in choose.items()]
    typed = [f"{key}={literal(value)}" for key, value in settings.items()]
    return Imported(
        overrides=(*chosen, *typed),
        recipe={"schema": SCHEMA, "summary": summary, "source": source, "choose": dict(choose), "set": dict(settings)},
        not_understood=tuple(not_understood),
        accumulation=accumulation,
    )


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
        content = json.loads(text)
    except ValueError as error:
        raise ConfigErrors([ConfigError(path, text[:40], f"{what} is JSON, and this is not: {error}")]) from None
    if not isinstance(content, dict):
        raise ConfigErrors([ConfigError(path, text[:40], f"{what} is one JSON object: {{...}}")])
    return content
