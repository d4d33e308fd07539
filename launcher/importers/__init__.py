"""Existing configurations as overrides and as a recipe: one module a format, with ``read(text, path) -> Imported``.

Reading is pure. Every key of a file ends in exactly one of four lists: said here by overrides, the default here too,
kept for the engine (``backend.extra``), or left out, with the effect of that (``launcher.config.ledger``).
"""

from __future__ import annotations

from launcher.config.ledger import UNKNOWN, Imported, Ledger, LeftOut, Said

__all__ = ["UNKNOWN", "Imported", "Ledger", "LeftOut", "Said"]
