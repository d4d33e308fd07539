"""Plug-ins by name: a backend, a strategy or a family is one module in its folder, with no central list.

Backends and families may also come from other installed packages, through entry points of ``llm_launch.backends`` or
``llm_launch.families``, imported when chosen. Metadata files are first searched for the groups' common prefix (2 ms),
and only then read with ``importlib.metadata``, which takes up to 150 ms for a hundred packages.
"""

import importlib
import os
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from launcher.base.errors import ConfigError, ConfigErrors

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_BEGINNING = "llm_launch."
KEYS = {"backends": "backend.name", "families": "model.family"}
"""The folders that installed packages can extend, and the key that chooses from each; the entry point group is
``llm_launch.`` and the folder's name."""

_FOLDERS = {"families": "launcher.estimate.families", "strategies": "launcher.estimate.strategies"}
"""The package of a folder of choices, if it is not ``launcher.<package>``."""


@cache
def names(package: str) -> tuple[str, ...]:
    """Return all names that can be chosen: the modules of a folder, and those that installed packages offer."""
    return tuple(sorted({*shipped(package), *_offers().get(package, ())}))


@cache
def shipped(package: str) -> tuple[str, ...]:
    """Return the modules of a folder in alphabetical order, without private ones, which start with ``_``."""
    folder = importlib.import_module(_folder(package))
    found = sorted(module.name for module in pkgutil.iter_modules(folder.__path__))
    return tuple(name for name in found if not name.startswith("_"))


def offered(package: str) -> Mapping[str, str]:
    """Return the names that installed packages offer, each with its distribution, without importing them."""
    return {name: _owner(entries[0]) for name, entries in _offers().get(package, {}).items()}


@cache
def load(package: str, name: str) -> Any:
    """Import the chosen one; KeyError if there is none, ConfigErrors if an installed package's is broken."""
    entries = _offers().get(package, {}).get(name, ())
    if entries:
        return _offer(package, name, entries)
    if name not in shipped(package):
        raise KeyError(f"{_folder(package)} has no module {name!r}")
    return importlib.import_module(f"{_folder(package)}.{name}")


def faults(package: str, name: str) -> tuple[ConfigError, ...]:
    """Return errors of a choice that an installed package offers; the launcher's own modules are not imported."""
    if name in _offers().get(package, {}):
        try:
            load(package, name)
        except ConfigErrors as found:
            return tuple(found.errors)
    return ()


def _offer(package: str, name: str, entries: "tuple[EntryPoint, ...]") -> Any:
    entry, key = entries[0], KEYS[package]
    owners = sorted({_owner(one) for one in entries})
    if name in shipped(package):
        rule = f"the installed package {owners[0]} offers this name, which the launcher itself uses"
        raise ConfigErrors([ConfigError(key, name, rule, [f"pip uninstall {owners[0]}"])])
    if len(entries) > 1:
        rule = f"it is offered by more than one package: {' and '.join(owners)}"
        raise ConfigErrors([ConfigError(key, name, rule, [f"pip uninstall {owner}" for owner in owners])])
    said = f"the installed package {owners[0]} offers it as {entry.value}"
    instead = [f"pip install --upgrade {owners[0]}", *(f"{key}={other}" for other in shipped(package))]
    try:
        found = entry.load()
    except Exception as error:
        rule = f"{said}, which cannot be imported: {type(error).__name__}: {error}"
        raise ConfigErrors([ConfigError(key, name, rule, instead)]) from error
    protocol = importlib.import_module(_folder(package)).PROTOCOL
    members = sorted({name for base in protocol.__mro__ for name in vars(base) if not name.startswith("_")})
    missing = [member for member in members if not hasattr(found, member)]
    if missing:
        rule = f"{said}, which lacks {', '.join(missing)} of {_folder(package)}.{protocol.__name__}"
        raise ConfigErrors([ConfigError(key, name, rule, instead)])
    return found


def _folder(package: str) -> str:
    return _FOLDERS.get(package, f"launcher.{package}")


def _owner(entry: "EntryPoint") -> str:
    return entry.dist.name if entry.dist is not None else entry.value


@cache
def _offers() -> "Mapping[str, Mapping[str, tuple[EntryPoint, ...]]]":
    found: dict[str, dict[str, tuple[EntryPoint, ...]]] = {}
    if any(_mentions(path) for path in _metadata()):
        from importlib.metadata import entry_points  # Imported late: it scans every installed package.

        for package in KEYS:
            for entry in entry_points(group=f"{_BEGINNING}{package}"):
                offers = found.setdefault(package, {})
                offers[entry.name] = (*offers.get(entry.name, ()), entry)
    return found


def _metadata() -> Iterator[str]:
    for folder in dict.fromkeys(sys.path):
        try:
            inside = os.listdir(folder or ".")  # noqa: PTH208 - A Path for each of a thousand names takes longer.
        except OSError:
            continue
        yield from (
            os.path.join(folder, name, "entry_points.txt")  # noqa: PTH118
            for name in inside
            if name.endswith((".dist-info", ".egg-info"))
        )


def _mentions(path: str) -> bool:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return f"[{_BEGINNING}".encode() in file.read()
    except OSError:
        return False
