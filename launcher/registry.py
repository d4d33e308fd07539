"""Extension by file name: a backend, a strategy or a family is one module of its folder, with no central list."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType


@cache
def names(package: str) -> tuple[str, ...]:
    """The modules of ``launcher.<package>`` in alphabetical order; those starting with ``_`` are private."""
    folder = importlib.import_module(f"launcher.{package}")
    found = sorted(module.name for module in pkgutil.iter_modules(folder.__path__))
    return tuple(name for name in found if not name.startswith("_"))


@cache
def load(package: str, name: str) -> ModuleType:
    """Import the one module chosen.

    Raises:
        KeyError: No such module; callers have checked the name against :func:`names` while parsing.
    """
    if name not in names(package):
        raise KeyError(f"launcher.{package} has no module {name!r}")
    return importlib.import_module(f"launcher.{package}.{name}")
