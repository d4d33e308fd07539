"""Other people's memory estimators, asked about the same runs: one module each.

A module has ``SOURCE``, what it is and where its formula stands, and ``predict(spec) -> int | None``: bytes of one GPU,
the worst where it tells them apart, or None where the estimator does not cover the run. What an estimator is asked is
what its own documentation has people give it; nothing is added to its answer and nothing is put right.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def names() -> tuple[str, ...]:
    """The estimators in alphabetical order."""
    return tuple(sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_")))


def load(name: str) -> ModuleType:
    """One estimator."""
    return importlib.import_module(f"benchmarks.estimators.{name}")
