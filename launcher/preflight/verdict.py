"""Whether a run fits: its estimate against the device, the host and the disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from launcher import backends
from launcher.errors import ConfigError
from launcher.memory.result import MemoryEstimate, Needs
from launcher.spec import RunSpec
from launcher.units import gib

type VerdictName = Literal["fits", "tight", "does_not_fit", "invalid"]

_CROWDED = 0.5
"""Share of the device that whole copies of the model states may take before DDP is said to bite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """One place that is too small: ``device``, ``host`` or ``disk``, in bytes."""

    place: Literal["device", "host", "disk"]
    used_bytes: int
    capacity_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer in one word, and what it rests on.

    Attributes:
        name: ``tight`` is a fit within the estimate's error band.
        used_bytes: ``needed`` with context and communicators on the worst rank; None for an invalid run.
        capacity_bytes: What a rank may use; None is unknown, and then nothing is refused.
        shortages: What is too small; empty unless it does not fit.
        shortfall_by_moment: By how much the device is too small at each moment, then the host and the disk; negative
            where there is room.
    """

    name: VerdictName
    used_bytes: int | None = None
    capacity_bytes: int | None = None
    shortages: tuple[Shortage, ...] = ()
    shortfall_by_moment: tuple[int, ...] = ()

    @property
    def headroom_bytes(self) -> int | None:
        """What is left on the worst rank's device; negative where it does not fit, None where that is unknown."""
        if self.used_bytes is None or self.capacity_bytes is None:
            return None
        return self.capacity_bytes - self.used_bytes

    @property
    def excess_bytes(self) -> int:
        """By how much the places are too small together; a device also where it is so within the estimate's error."""
        elsewhere = sum(s.used_bytes - s.capacity_bytes for s in self.shortages if s.place != "device")
        return elsewhere + max(0, -(self.headroom_bytes or 0))

    @property
    def fits(self) -> bool:
        """Whether the run may start: ``tight`` counts as fitting."""
        return self.name in ("fits", "tight")


INVALID = Verdict(name="invalid")


def judge(spec: RunSpec, needs: Needs) -> Verdict:
    """Compare what a run needs with what there is.

    The device decides by the band around ``needed``, with context and communicators added at both ends: above the
    capacity as a whole it does not fit, across it it is tight. Host and disk have no band.
    """
    outside, capacity = needs.outside_bytes, spec.rank_memory_bytes
    used = needs.peak.needed_bytes + outside
    shortages = tuple(_shortages(spec, needs))
    if shortages:
        name: VerdictName = "does_not_fit"
    else:
        name = "tight" if capacity is not None and capacity < needs.peak.high_bytes + outside else "fits"
    return Verdict(
        name=name,
        used_bytes=used,
        capacity_bytes=capacity,
        shortages=shortages,
        shortfall_by_moment=_shortfall_by_moment(spec, needs),
    )


def _shortages(spec: RunSpec, needs: Needs) -> Iterator[Shortage]:
    peak, outside, capacity = needs.peak, needs.outside_bytes, spec.rank_memory_bytes
    if capacity is not None and peak.low_bytes + outside > capacity:
        yield Shortage(place="device", used_bytes=peak.needed_bytes + outside, capacity_bytes=capacity)
    host, disk = needs.host, needs.disk
    if host.capacity_bytes is not None and _host_shortfall(spec, needs) > 0:
        yield Shortage(place="host", used_bytes=host.bytes_per_node, capacity_bytes=host.capacity_bytes)
    if disk.capacity_bytes is not None and disk.kept_bytes > disk.capacity_bytes:
        yield Shortage(place="disk", used_bytes=disk.kept_bytes, capacity_bytes=disk.capacity_bytes)


def _shortfall_by_moment(spec: RunSpec, needs: Needs) -> tuple[int, ...]:
    """See :class:`Verdict`; 0 where the capacity is unknown."""
    capacity, disk = spec.rank_memory_bytes, needs.disk
    device = (0,) if capacity is None else tuple(used - capacity for used in needs.moments)
    kept = 0 if disk.capacity_bytes is None else disk.kept_bytes - disk.capacity_bytes
    return (*device, _host_shortfall(spec, needs), kept)


def _host_shortfall(spec: RunSpec, needs: Needs) -> int:
    """On the CPU the devices are the host: only what is offloaded beside them is another fact."""
    inside = spec.cluster.gpus_per_node * needs.peak.device_bytes if spec.hardware.device == "cpu" else 0
    capacity = needs.host.capacity_bytes
    return 0 if capacity is None else needs.host.bytes_per_node - max(capacity, inside)


def remarks(spec: RunSpec, estimate: MemoryEstimate) -> Iterator[ConfigError]:
    """Warnings that need the estimate: whole copies of the model states on every rank of a crowded device."""
    capacity = spec.rank_memory_bytes
    whole = not spec.parallel.shard and spec.zero.stage == 0 and spec.data_degree > 1
    if not whole or capacity is None or estimate.static_bytes <= _CROWDED * capacity:
        return
    share = estimate.static_bytes / capacity
    rule = (
        f"every data rank holds all model states, {gib(estimate.static_bytes)} or {share:.0%} of the device:"
        f" sharded over {spec.data_degree} ranks they would take a fraction of it"
    )
    yield ConfigError("zero.stage", 0, rule, backends.of(spec).profile.shards_instead)
