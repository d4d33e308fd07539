"""A term of Megatron's overheads."""

from __future__ import annotations

from launcher.memory.moments import Moment
from launcher.memory.terms import MemoryTerm, Pile

AFTER_BACKWARD: frozenset[Moment] = frozenset(("clip", "step", "idle", "checkpoint_save"))
"""From the last backward pass of a step until the next step begins."""


def term(pile: Pile, moments: frozenset[Moment], size: int, formula: str, source: str) -> MemoryTerm:
    """A term, never below zero."""
    return MemoryTerm(pile=pile, moments=moments, bytes=max(size, 0), formula=formula, source=source)
