"""The keys that a command line says: those that it sets, and those that the options set which it chooses.

What stands in a group's ``_base.yaml`` is a default that nobody has said, also where an option inherits it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from launcher.base import files
from launcher.config import safe_yaml
from launcher.config.catalog import Catalog
from launcher.config.overrides import Override

_GLOBAL = "@package _global_"
"""Hydra's words at the head of an option whose keys begin with their groups, as presets have them."""

_NO_CHOICE = ("_base", "_self_")


def keys(overrides: Iterable[Override], catalog: Catalog) -> frozenset[str]:
    """The keys that these words say, and the groups whose options they choose.

    Args:
        overrides: The words, those of a recipe among them.
        catalog: The configuration folders.
    """
    found: set[str] = set()
    for override in overrides:
        found.add(override.key)
        if override.group:
            found.update(_of_option(override.key, override.value, catalog))
    return frozenset(found)


def _of_option(group: str, option: str, catalog: Catalog) -> Iterator[str]:
    path = next((p for folder in catalog.conf if (p := folder / group / f"{option}.yaml").is_file()), None)
    if path is None:
        return
    content = safe_yaml.load(path)
    if not isinstance(content, dict):
        return
    for default in content.pop("defaults", ()):
        yield from _of_default(group, default, catalog)
    sections = content if _GLOBAL in files.read_text(path) else {group: content}
    for section, values in sections.items():
        if isinstance(values, Mapping):
            yield from (f"{section}.{key}" for key in values)


def _of_default(group: str, default: Any, catalog: Catalog) -> Iterator[str]:
    """An entry of a list of defaults: an option that this one builds on, or the choice of another group's."""
    if isinstance(default, str):
        if default not in _NO_CHOICE:
            yield from _of_option(group, default, catalog)
        return
    for key, value in default.items():
        other = str(key).removeprefix("override").strip().removeprefix("/")
        yield other
        yield from _of_option(other, str(value), catalog)
