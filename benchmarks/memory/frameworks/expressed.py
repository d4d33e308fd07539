"""A published row as overrides, read by a framework's module from the columns and notes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from launcher.base import registry
from launcher.estimate.memory.estimate import Backend, estimate
from launcher.spec import RunSpec

type Line = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expressed:
    """A row as overrides: its backend, and settings whose columns differ between frameworks.

    Attributes:
        backend: What stands in for a backend of ours.
        settings: Further overrides.
        stage: The pipeline stage that was measured; None is the worst.
        first_step: Whether the first step was measured.
        reserved: Bytes that the allocator reserves of a run; None is the estimate's share of what is allocated.
    """

    backend: Backend | None = None
    settings: dict[str, object] = field(default_factory=dict)
    stage: int | None = None
    first_step: bool = False
    reserved: Callable[[RunSpec], int] | None = None


def within_card(backend: Backend, spec: RunSpec) -> int:
    """Bytes that the allocator reserves: the estimate's share of the allocated bytes, at most the card's capacity.

    An allocator that finds no more gives back what it caches (``release_cached_blocks``).
    """
    family = registry.load("families", spec.model.family)
    strategies = [registry.load("strategies", name) for name in registry.names("strategies")]
    peak = estimate(spec, family=family, strategies=strategies, backend=backend).peak
    outside, capacity = peak.device_bytes - peak.reserved_bytes, spec.rank_memory_bytes or peak.device_bytes
    return max(min(peak.reserved_bytes, capacity - outside), peak.allocated_bytes)


class LeftOutError(Exception):
    """A row that cannot be expressed; its text is the reason."""
