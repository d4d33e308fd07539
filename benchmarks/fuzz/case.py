"""A case of input, and how cases are drawn."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

type Draw = Callable[[random.Random], Case]
"""Draws one case of a source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One input.

    Attributes:
        source: The kind of input, by which faults are counted.
        words: Of the command.
        files: Contents by path below the working folder, there while the command runs.
        odd: What lies there in place of a regular file by path, as named in ``benchmarks.fuzz.odd``.
        answers: Lines that stdout must have; None where any number will do.
    """

    source: str
    words: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    odd: Mapping[str, str] = field(default_factory=dict)
    answers: int | None = None
