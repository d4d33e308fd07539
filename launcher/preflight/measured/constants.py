"""The constants of estimates that measured runs give: of the model of speed, and the speed of storage.

A constant of speed is that of the same card, framework and cluster, models with experts apart.

Of each layout the newest run counts, with one vote; from three layouts on the median of measured / uncorrected speed
takes the place of the shipped constant. Runs that were predicted beside another calibration do not count, since what a
constant corrects was another prediction then. Versions of a framework are not told apart: what is measured anew takes
the place of what was measured before.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from launcher import backends
from launcher.base.units import GIB
from launcher.estimate.speed import calibration
from launcher.estimate.speed.calibration import Constant
from launcher.estimate.speed.card import card_of
from launcher.preflight.measured.file import Row
from launcher.spec import RunSpec

LEAST_LAYOUTS = 3  # Of fewer the median is that of one run or two, which may be unlike the run that is asked about.
_WEIGHT = calibration.LEAST_ROWS  # Runs that the shipped band counts as: the fewest for which one is shipped.
_Z = 1.645  # Standard deviations of a normal distribution within which nine of ten values are, as in the shipped band.
_SMALLER = 100
"""Times by which a measured checkpoint may be smaller than one that is asked about, if it has less than a GiB: of small
ones the seconds are those of opening files and of waiting for each other, and say nothing of bytes."""

_NEWEST = 5  # Runs whose median is taken: storage changes, and one run may have met others on it.


class Key(NamedTuple):
    """The facts that runs of one constant share."""

    hardware: str
    framework: str
    experts: bool
    cluster: str
    link_bandwidth: float | None
    network_bandwidth: float | None
    network_latency: float | None

    @classmethod
    def of(cls, row: Row) -> "Key":
        """The key of a measured run."""
        return cls(*(getattr(row, name) for name in cls._fields))


class Anchor(NamedTuple):
    """One measured run, whose constant is that of the runs that are like it."""

    name: str  # Its name, as ``launch status`` shows it.
    spec: RunSpec  # The run.
    ratio: float  # Measured / uncorrected predicted speed.


class Own(NamedTuple):
    """The measured runs of one key."""

    value: float  # The median of their ratios.
    deviation: float  # The standard deviation of the logarithms of the ratios over it.
    runs: int  # The runs, one of each layout.
    nodes: int  # The nodes of the largest.


def of_rows(rows: Iterable[Row]) -> dict[Key, Own]:
    """The constants of all keys with enough measured runs."""
    layouts: dict[Key, dict[str, Row]] = {}
    for row in rows:
        if counts(row):
            layouts.setdefault(Key.of(row), {})[row.layout] = row
    return {key: _own(list(found.values())) for key, found in layouts.items() if len(found) >= LEAST_LAYOUTS}


def counts(row: Row) -> bool:
    """True if a run may be in a constant."""
    return why_not(row) is None


def why_not(row: Row) -> str | None:
    """The reason why a run is in no constant; None where it may be."""
    if row.left_out is not None:
        return row.left_out
    if row.ratio is None:
        return "its speed was not predicted" if row.predicted.uncorrected is None else "its speed was not measured"
    if row.calibration != calibration.version():
        return "it was predicted by another version of the model of speed"
    return None


def _own(rows: Sequence[Row]) -> Own:
    from statistics import median, stdev  # Late, because most checks have no measured runs.

    ratios = [row.ratio or math.nan for row in rows]
    value = median(ratios)
    deviation = stdev(math.log(ratio / value) for ratio in ratios)
    return Own(value=value, deviation=deviation, runs=len(rows), nodes=max(row.nodes for row in rows))


def constant_of(spec: RunSpec, table: Mapping[Key, Own]) -> Constant | None:
    """The constant of a run; None where too little was measured of its key."""
    card, execution = card_of(spec.hardware), backends.of(spec).execution(spec)
    if card is None or execution is None:
        return None
    experts = spec.model.num_experts > 0
    own = table.get(key_of(spec, card.name, execution.framework))
    if own is None:
        return None
    shipped = calibration.constant(execution.framework, card, execution.related, experts=experts)
    kind = ", models with experts" if experts else ""
    found = banded(own, shipped, f"{execution.framework} on {card.name}{kind}, this cluster")
    if spec.cluster.nodes <= own.nodes or not shipped.rows:
        return found
    return replace(found, low=min(found.low, shipped.low), high=max(found.high, shipped.high))


def anchored(spec: RunSpec, anchor: Anchor) -> Constant | None:
    """The constant of an anchor for a run by its engine on its card, with or without experts as it; None for another.

    The band is that in which measured runs on several nodes lay around what such a run of one node says of them, of the
    same layout but for copies, or of others (``anchored`` of ``calibration.json``).
    """
    if _stack(spec) != _stack(anchor.spec):
        return None
    alike = layout_of(spec) == layout_of(anchor.spec)
    band = calibration.shipped()["anchored"]["same" if alike else "others"]
    of = f"{anchor.name} on {anchor.spec.gpus} GPUs"
    return Constant(value=anchor.ratio, low=band["low"], high=band["high"], rows=1, whose=of, here=True)


def _stack(spec: RunSpec) -> tuple[object, ...]:
    card, execution = card_of(spec.hardware), backends.of(spec).execution(spec)
    return card, execution and execution.framework, spec.model.num_experts > 0


def layout_of(spec: RunSpec) -> tuple[object, ...]:
    """The model and all of a run's layout but its copies: equal of runs that differ in nodes and batch alone."""
    parallel = replace(spec.parallel, replicate=1)
    batch = (spec.micro_batch_size, spec.sequence_length)
    return spec.model, parallel, spec.zero, spec.precision, spec.checkpointing, spec.adapter, batch


def key_of(spec: RunSpec, hardware: str, framework: str) -> Key:
    """The key of a run."""
    cluster, own = spec.cluster, spec.cluster.network_bandwidth
    network = spec.hardware.network_bandwidth if own is None else own
    return Key(
        hardware=hardware,
        framework=framework,
        experts=spec.model.num_experts > 0,
        cluster=cluster.kind,
        link_bandwidth=spec.hardware.link_bandwidth,
        network_bandwidth=network,
        network_latency=cluster.network_latency,
    )


def banded(own: Own, shipped: Constant, whose: str) -> Constant:
    """The constant of measured runs with its band, ``w^2 = (k a^2 + n (z s)^2) / (k + n)`` on each side.

    Args:
        own: The ``n`` runs, whose ratios deviate by ``s``.
        shipped: Its band is ``a`` wide, both as logarithms; it counts as ``k`` runs, so that few runs that happen to
            agree make no narrow band, and many that are alike make one of their own width.
        whose: The runs in words.
    """
    weight = _WEIGHT if shipped.rows else 0

    def width(end: float) -> float:
        return math.sqrt((weight * math.log(end) ** 2 + own.runs * (_Z * own.deviation) ** 2) / (weight + own.runs))

    return Constant(
        value=own.value,
        low=math.exp(-width(min(1.0, shipped.low))),
        high=math.exp(width(max(1.0, shipped.high))),
        rows=own.runs,
        whose=whose,
        here=True,
    )


class Storage(NamedTuple):
    """The speed of storage in measured runs."""

    bandwidth: float  # Bytes/s from the begin of a checkpoint until it is whole.
    # Share of that time for which training waited while the rest was written beside it; None where no run wrote so.
    blocking: float | None
    runs: int  # The runs.
    nodes: int  # Nodes of each of them.


def storage_of(rows: Iterable[Row], cluster: str, nodes: int, checkpoint_bytes: int) -> Storage | None:
    """The speed of storage in the newest runs of a kind of cluster; None where none of them says it.

    Those runs count that had most nodes, and no more than the ``nodes`` of the run that is asked about.
    """
    least = min(GIB, checkpoint_bytes // _SMALLER)
    known = [row for row in rows if row.cluster == cluster and row.nodes <= nodes and _speed(row) is not None]
    known = [row for row in known if (row.measured.checkpoint_bytes or 0) >= least]
    if not known:
        return None
    from statistics import median  # Late, because most checks have no measured runs.

    most = max(row.nodes for row in known)
    newest = [row for row in known if row.nodes == most][-_NEWEST:]
    shares = [
        row.measured.blocking_seconds / row.measured.save_seconds
        for row in newest
        if row.measured.blocking_seconds is not None and row.measured.save_seconds
    ]
    speeds = [speed for row in newest if (speed := _speed(row)) is not None]
    return Storage(median(speeds), median(shares) if shares else None, len(newest), most)


def _speed(row: Row) -> float | None:
    size, seconds = row.measured.checkpoint_bytes, row.measured.save_seconds
    return None if size is None or seconds is None else size / seconds
