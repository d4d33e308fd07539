"""Measured speed over predicted speed, a constant for a framework and GPU, and the residuals around it.

The figures are ``calibration.json`` beside this file, written by ``python -m benchmarks.speed --data DIR
--write-calibration``.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from launcher.speed.result import Constant

CALIBRATION = Path(__file__).with_name("calibration.json")

LEAST_ROWS = 5
"""Measured runs below which a constant would be that of one or two configurations."""

UNCALIBRATED = Constant(value=1.0, low=1.0, high=1.0, rows=0, whose="no measured run")


@cache
def constant(framework: str, gpu: str, related: tuple[str, ...] = (), *, experts: bool = False) -> Constant:
    """The constant of a framework on a GPU; of the framework on any, where there is none; else the median of all.

    A model with experts takes those of runs of such models, where there are enough of the framework's.

    Args:
        framework: The framework.
        gpu: The GPU, an option of the group ``hardware``.
        related: Frameworks that run the same code, whose runs on this GPU come before its own on another.
        experts: True if the model has experts.
    """
    found = _calibration()
    for tables in (found.get("experts", {}), found) if experts else (found,):
        pairs = [tables.get("pairs", {}).get(f"{name} on {gpu}") for name in (framework, *related)]
        for rows in (*pairs, *(tables.get("frameworks", {}).get(name) for name in (framework, *related))):
            if rows is not None and rows["rows"] >= LEAST_ROWS:
                return _read(rows)
    return _read(found["all"]) if "all" in found else UNCALIBRATED


@cache
def _calibration() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(CALIBRATION.read_text()) if CALIBRATION.exists() else {}
    return content


def _read(row: dict[str, Any]) -> Constant:
    return Constant(value=row["constant"], low=row["low"], high=row["high"], rows=row["rows"], whose=row["whose"])
