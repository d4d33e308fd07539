"""The keys that a command line sets, directly or through the options it chooses, and the choice of a backend.

The hidden preset with a backend's name holds its defaults (``conf/parallel/_megatron.yaml``), as ``parallel=fsdp`` does
for the default backend; a backend without one gets those of ``conf/parallel/_plain.yaml``. Every typed word overrides
what a preset chooses. Values in a group's ``_base.yaml`` are defaults that do not count as set, even if an option
inherits them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from launcher.base import files, registry
from launcher.base.errors import ConfigError
from launcher.config import safe_yaml
from launcher.config.catalog import PRESETS, Catalog
from launcher.config.compose import compose
from launcher.config.overrides import Override

_BACKEND = ("backend", "backend.name")
_TASK = ("task", "task.name")
_DEFAULT_TASK = "pretrain"
_GLOBAL = "@package _global_"
"""Hydra's directive in an option whose keys begin with their groups, as in presets."""

_NO_CHOICE = ("_base", "_self_")


def backend_of(overrides: Iterable[Override]) -> str | None:
    """Return the backend that a command line or its recipe names; None if a preset or the defaults choose it."""
    return next((override.value for override in reversed([*overrides]) if override.key in _BACKEND), None)


def with_defaults(overrides: Sequence[Override], catalog: Catalog) -> list[Override]:
    """Return the overrides preceded by the preset of the chosen backend, unless they choose a preset."""
    backend = backend_of(overrides)
    preset = any(override.group and override.key == PRESETS for override in overrides)
    if backend is None or preset or backend not in registry.names("backends"):
        return list(overrides)
    folders = [folder / PRESETS for folder in catalog.conf]
    names = (name for name in (f"_{backend}", backend) if any((each / f"{name}.yaml").is_file() for each in folders))
    option = next(names, "_plain")
    return [Override(f"{PRESETS}={option}", PRESETS, option, group=True), *overrides]


def with_task(overrides: Sequence[Override]) -> list[Override]:
    """Return the overrides preceded by the choice of the backend that trains the task, unless they name a backend."""
    task = next((override.value for override in reversed(overrides) if override.key in _TASK), _DEFAULT_TASK)
    if task == _DEFAULT_TASK or backend_of(overrides) is not None:
        return list(overrides)
    backends = registry.shipped("backends")
    found = (name for name in backends if task in registry.load("backends", name).profile.tasks)
    return [*(Override(f"backend={name}", "backend", name, group=True) for name in found), *overrides]


def keeping_backend(backend: str | None, findings: Iterable[ConfigError], catalog: Catalog) -> tuple[ConfigError, ...]:
    """Return findings without ways out that choose a backend other than the one the user named."""
    if backend is None or backend not in registry.names("backends"):
        return tuple(findings)
    kept = []
    for error in findings:
        ways = [way for way in error.way_out if error.path in _BACKEND or not _chooses_another(way, backend, catalog)]
        kept.append(ConfigError(error.path, error.found, error.rule, ways))
    return tuple(kept)


def _chooses_another(way: str, backend: str, catalog: Catalog) -> bool:
    words = [word.partition("=") for word in way.split()]
    named = [option for key, _, option in words if key in _BACKEND]
    for key, _, option in words:
        if key == PRESETS and option in catalog.groups[PRESETS]:
            named.append(compose([Override(way, key, option, group=True)], catalog)["backend"]["name"])
    return any(name != backend for name in named)


def keys_set_by(overrides: Iterable[Override], catalog: Catalog) -> frozenset[str]:
    """Return the keys that words and their recipe set, and the groups whose options they choose."""
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
    if isinstance(default, str):
        if default not in _NO_CHOICE:
            yield from _of_option(group, default, catalog)
        return
    for key, value in default.items():
        other = str(key).removeprefix("override").strip().removeprefix("/")
        yield other
        yield from _of_option(other, str(value), catalog)
