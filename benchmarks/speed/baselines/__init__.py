"""Other people's predictors of training speed, asked about the same runs: one module each.

A module has ``SOURCE``, what it is, where its formulas stand and what is left out of them, and
``predict(row) -> float | None``: tokens per second of one GPU, or None where the predictor does not cover the run. What
a predictor is asked is what its own documentation has people give it; nothing is added to its answer and nothing is put
right.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def names() -> tuple[str, ...]:
    """The predictors in alphabetical order."""
    return tuple(sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_")))


def load(name: str) -> ModuleType:
    """One predictor."""
    return importlib.import_module(f"benchmarks.speed.baselines.{name}")
