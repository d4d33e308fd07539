"""Existing configurations as overrides and as a recipe: one module a format, with ``read(text, path) -> Imported``.

Reading is pure. Every key of a file ends in exactly one of four lists: said here by overrides, the default here too,
kept for the engine (``backend.extra``), or left out, with the effect of that (``launcher.config.ledger``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from launcher.config.ledger import UNKNOWN, Imported, Ledger, LeftOut, Said
from launcher.config.recipes import SCHEMA, literal

__all__ = ["UNKNOWN", "Imported", "Ledger", "LeftOut", "Said", "imported"]


def imported(
    *,
    summary: str,
    source: str,
    choose: Mapping[str, str],
    settings: Mapping[str, Any],
    not_understood: Iterable[str],
) -> Imported:
    """Put choices and settings into both forms."""
    chosen = [f"{group}={option}" for group, option in choose.items()]
    typed = [f"{key}={literal(value)}" for key, value in settings.items()]
    return Imported(
        overrides=(*chosen, *typed),
        recipe={"schema": SCHEMA, "summary": summary, "source": source, "choose": dict(choose), "set": dict(settings)},
        not_understood=tuple(not_understood),
    )
