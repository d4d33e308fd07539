"""Existing configurations as overrides and as a recipe: one module a format, with ``read(text, path) -> Imported``.

Reading is pure. What a file says that changes memory or the result and has no setting here is named, never ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.config.recipes import SCHEMA, literal


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
