"""The verdict on a run: its estimate against the device, the host and the disk.

The device's capacity is compared with the error band around ``needed``: a run does not fit if even the lower end is
above it, and is tight if it lies within the band. Host memory and disk have no band. If a capacity is unknown, a run is
refused only if no device could hold it. For the search for ways out, a verdict also says how much is missing at each
moment of a step: a change that helps at any one of them may be half of an answer.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

from launcher import backends
from launcher.base.errors import ConfigError
from launcher.base.frozen import dataclass
from launcher.base.units import gib
from launcher.estimate.memory.result import MemoryEstimate, Needs
from launcher.spec import RunSpec
from launcher.spec.values import Device

type VerdictName = Literal["fits", "tight", "does_not_fit", "invalid", "unknown"]

MOST_OF_ANY: Mapping[Device, int] = {"cpu": 2**46, "cuda": 2**40}
"""More bytes than any rank has, the limit if its memory is unknown: 64 TiB is the most of one machine (HPE Superdome
Flex), and 1 TiB is three times the largest card in ``conf/hardware``."""

_CROWDED = 0.5  # Share of the device that replicated model states may take before DDP gets a warning.


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """One place that is too small: ``device``, ``host`` or ``disk``, in bytes."""

    place: Literal["device", "host", "disk"]
    used_bytes: int
    capacity_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict in one word, and the figures behind it."""

    # ``tight``: the capacity lies within the estimate's error band; ``unknown``: the run builds an unknown model.
    name: VerdictName
    # ``needed`` plus context and communicators on the worst rank; None for an invalid or unknown run.
    used_bytes: int | None = None
    # Bytes that a rank may use; None if unknown, and then no run is refused that some device could hold.
    capacity_bytes: int | None = None
    shortages: tuple[Shortage, ...] = ()  # The places that are too small; empty unless it does not fit.
    # Bytes missing on the device at each moment, then on host and disk; negative if there is room.
    shortfall_by_moment: tuple[int, ...] = ()
    # The probability that the device suffices, by the error band; 0 if host or disk do not, 1 if the device's capacity
    # is unknown.
    chance: float = 1.0
    # Bytes that must stay free in addition: the upper half of the band if the run should fit for certain.
    margin_bytes: int = 0
    host_bytes: int = 0  # Host memory that the ranks of a node take together.

    @property
    def headroom_bytes(self) -> int | None:
        """Bytes left on the worst rank's device; negative if it does not fit, None if unknown."""
        if self.used_bytes is None or self.capacity_bytes is None:
            return None
        return self.capacity_bytes - self.used_bytes

    @property
    def excess_bytes(self) -> int:
        """Bytes missing in all places together, on the device including the margin."""
        elsewhere = sum(s.used_bytes - s.capacity_bytes for s in self.shortages if s.place != "device")
        headroom = self.headroom_bytes
        return elsewhere + (0 if headroom is None else max(0, self.margin_bytes - headroom))

    @property
    def fits(self) -> bool | None:
        """True if it fits or is tight; None if unknown."""
        return None if self.name == "unknown" else self.name in ("fits", "tight")

    @property
    def may_start(self) -> bool:
        """True unless the run does not fit or is invalid; an unknown run may start."""
        return self.fits is not False


INVALID = Verdict(name="invalid")


def judge(spec: RunSpec, needs: Needs, *, safely: bool = False) -> Verdict:
    """The verdict on a run, from its needs and its capacities.

    The device is judged by the band around ``needed``, plus context and communicators: the run does not fit if the
    whole band is above the capacity, and is tight if the band contains it. Host and disk have no band.
    """
    outside, capacity = needs.outside_bytes, _capacity(spec, needs)
    used = needs.peak.needed_bytes + outside
    margin = needs.peak.high_bytes - needs.peak.needed_bytes if safely else 0
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
        shortfall_by_moment=_shortfall_by_moment(spec, needs, margin),
        chance=0.0 if shortages else 1.0 if capacity is None else needs.chance(capacity),
        margin_bytes=margin,
        host_bytes=needs.host.bytes_per_node,
    )


def unknown(spec: RunSpec) -> Verdict:
    """The verdict on a run that builds an unknown model."""
    return Verdict(name="unknown", capacity_bytes=spec.rank_memory_bytes)


def beyond(capacity: int) -> Verdict:
    """The verdict on a run of which a part alone needs more than the device has."""
    short = Shortage(place="device", used_bytes=capacity + 1, capacity_bytes=capacity)
    return Verdict(
        name="does_not_fit", used_bytes=capacity + 1, capacity_bytes=capacity, shortages=(short,), chance=0.0
    )


def _capacity(spec: RunSpec, needs: Needs) -> int | None:
    """Bytes that a rank may use; None if unknown, unless the run needs more than any device has."""
    known = spec.rank_memory_bytes
    most = MOST_OF_ANY[spec.hardware.device] if known is None else 0
    return most if known is None and needs.peak.low_bytes + needs.outside_bytes > most else known


def _shortages(spec: RunSpec, needs: Needs) -> Iterator[Shortage]:
    peak, outside, capacity = needs.peak, needs.outside_bytes, _capacity(spec, needs)
    if capacity is not None and peak.low_bytes + outside > capacity:
        yield Shortage(place="device", used_bytes=peak.needed_bytes + outside, capacity_bytes=capacity)
    host, disk = needs.host, needs.disk
    if host.capacity_bytes is not None and _host_shortfall(spec, needs) > 0:
        yield Shortage(place="host", used_bytes=host.bytes_per_node, capacity_bytes=host.capacity_bytes)
    if disk.capacity_bytes is not None and disk.kept_bytes > disk.capacity_bytes:
        yield Shortage(place="disk", used_bytes=disk.kept_bytes, capacity_bytes=disk.capacity_bytes)


def _shortfall_by_moment(spec: RunSpec, needs: Needs, margin: int) -> tuple[int, ...]:
    """Bytes missing at each moment, on the host and on the disk (:class:`Verdict`); 0 if a capacity is unknown."""
    capacity, disk = _capacity(spec, needs), needs.disk
    device = (0,) if capacity is None else tuple(used + margin - capacity for used in needs.moments)
    kept = 0 if disk.capacity_bytes is None else disk.kept_bytes - disk.capacity_bytes
    return (*device, _host_shortfall(spec, needs), kept)


def _host_shortfall(spec: RunSpec, needs: Needs) -> int:
    """Bytes missing on a node's host. For CPU ranks the device is the host, so only offloaded bytes are added to it."""
    inside = spec.cluster.gpus_per_node * needs.peak.device_bytes if spec.hardware.device == "cpu" else 0
    capacity = needs.host.capacity_bytes
    return 0 if capacity is None else needs.host.bytes_per_node - max(capacity, inside)


def remarks(spec: RunSpec, estimate: MemoryEstimate) -> Iterator[ConfigError]:
    """Warnings that need the estimate: replicated states that crowd the device, and a model too large for one node."""
    yield from _tasks(spec, estimate.parameters.total)
    capacity = spec.rank_memory_bytes
    whole = not spec.parallel.shard and spec.zero.stage == 0 and spec.data_degree > 1
    if not whole or capacity is None or estimate.static_bytes <= _CROWDED * capacity:
        return
    share = estimate.static_bytes / capacity
    rule = (
        f"every data rank holds all model states, {gib(estimate.static_bytes)} or {share:.0%} of the device;"
        f" sharded over {spec.data_degree} ranks, each would hold a fraction of them"
    )
    yield ConfigError("zero.stage", 0, rule, backends.of(spec).profile.shards_instead)


def _tasks(spec: RunSpec, parameters: int) -> Iterator[ConfigError]:
    """A warning if one node's devices cannot hold the whole model, on which tasks are evaluated."""
    device, wide = spec.rank_memory_bytes, spec.precision.compute == "fp32"
    number, size = spec.cluster.gpus_per_node, parameters * (4 if wide else 2)
    if spec.eval.tasks and device is not None and size > number * device:
        rule = (
            f"tasks are evaluated on the whole model on one node: it needs {gib(size)} in {'32' if wide else '16'} "
            f"bits, and the node's {number} devices have {gib(number * device)}"
        )
        yield ConfigError("eval.tasks", list(spec.eval.tasks), rule, ["eval.tasks=[]"])
