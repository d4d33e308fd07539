"""The error band around what a run needs: how far measured runs lay from this model's own predictions of them.

The figures are ``residuals.json`` beside this file, written by ``python -m benchmarks.memory --data DIR --write-band``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

RESIDUALS = Path(__file__).with_name("residuals.json")

LEAST_ROWS = 20
"""Measured runs below which a quantile would be that of one or two runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Quantiles of measured / predicted.

    Attributes:
        low: The lower one.
        high: The upper one.
        rows: The runs that they are of.
        whose: The framework whose runs they are.
        own: True if that is the framework that is judged.
        runs_on: Else the engine that both run on, if they share one.
    """

    low: float
    high: float
    rows: int
    whose: str
    own: bool
    runs_on: str | None = None


@cache
def band(framework: str, *, cuda: bool, runs_on: str | None = None) -> Band:
    """The band of a framework: of its measured runs, of another's on the same engine, or the widest of any.

    On the CPU, where no allocator keeps a cache, it is that of the workers' own runs.
    """
    found = _residuals()
    own = found["measured" if cuda else "own_runs"].get(framework)
    if own is not None and (not cuda or own["rows"] >= LEAST_ROWS):
        return _read(framework, own, own=True)
    enough = {name: row for name, row in found["measured"].items() if row["rows"] >= LEAST_ROWS}
    related = {name: row for name, row in enough.items() if runs_on is not None and row.get("engine") == runs_on}
    whose, row = max((related or enough).items(), key=lambda item: float(item[1]["high"] - item[1]["low"]))
    return _read(whose, row, own=False, runs_on=row["engine"] if related else None)


@cache
def _residuals() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(RESIDUALS.read_text())
    return content


def _read(whose: str, row: dict[str, Any], *, own: bool, runs_on: str | None = None) -> Band:
    return Band(low=row["low"], high=row["high"], rows=row["rows"], whose=whose, own=own, runs_on=runs_on)
