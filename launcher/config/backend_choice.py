"""The choice of a backend and its consequences: the defaults that it brings, and ways out that leave it chosen.

The hidden preset of a backend's name holds its defaults (``conf/parallel/_megatron.yaml``), as ``parallel=fsdp`` does
for the backend that is chosen where nothing is said; a backend without one has those of ``conf/parallel/_plain.yaml``.
What a preset chooses is weaker than every word that is typed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcher.base import registry
from launcher.base.errors import ConfigError
from launcher.config.catalog import PRESETS, Catalog
from launcher.config.compose import compose
from launcher.config.overrides import Override

_BACKEND = ("backend", "backend.name")


def chosen(overrides: Iterable[Override]) -> str | None:
    """The backend that a command line or its recipe names; None where a preset or the defaults choose it."""
    return next((override.value for override in reversed([*overrides]) if override.key in _BACKEND), None)


def with_defaults(overrides: Sequence[Override], catalog: Catalog) -> list[Override]:
    """The same overrides behind the preset of the chosen backend's name, unless a preset is chosen."""
    backend = chosen(overrides)
    preset = any(override.group and override.key == PRESETS for override in overrides)
    if backend is None or preset or backend not in registry.names("backends"):
        return list(overrides)
    option = next((name for name in (f"_{backend}", backend) if _is_preset(name, catalog)), "_plain")
    return [Override(f"{PRESETS}={option}", PRESETS, option, group=True), *overrides]


def _is_preset(name: str, catalog: Catalog) -> bool:
    return any((folder / PRESETS / f"{name}.yaml").is_file() for folder in catalog.conf)


def leaving(backend: str | None, findings: Iterable[ConfigError], catalog: Catalog) -> tuple[ConfigError, ...]:
    """Findings without the ways out that choose another backend than the one that was named, which stays chosen.

    A finding about the choice itself keeps all of them.
    """
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
