"""Other people's memory estimators, applied to the same runs: one module each.

A module has ``SOURCE``, its origin and the place of its formula, and ``predict(spec) -> int | None``: bytes of one GPU,
the worst if it distinguishes them, or None if the estimator does not cover the run. An estimator gets the inputs that
its own documentation asks for; its answer is neither extended nor corrected.
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
