"""Constants for estimates, derived from measured runs: of the speed model, and of storage bandwidth.

A speed constant holds for one card, framework and cluster, with a separate one for models with experts.

The newest run of each layout counts once; from three layouts on, the median of measured / uncorrected speed replaces
the shipped constant. Runs predicted with another calibration do not count, because the constant would correct another
prediction. Versions of a framework are not distinguished: a newer measurement replaces an older one.
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

LEAST_LAYOUTS = 3  # With fewer, the median would be one or two runs, which may be unlike the run to predict.
_WEIGHT = calibration.LEAST_ROWS  # Runs that the shipped band counts as: the fewest for which one is shipped.
_Z = 1.645  # Nine of ten values of a normal distribution lie within so many deviations, as in the shipped band.
_MOST_TIMES_SMALLER = 100
"""A measured checkpoint below 1 GiB may be so many times smaller than the predicted one: the time of a small one goes
into opening files and synchronizing ranks, and says nothing about bandwidth."""

_NEWEST = 5  # Runs in the median: storage changes over time, and a single run may have shared it with others.


class Key(NamedTuple):
    """What all runs behind one constant have in common."""

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
    """One measured run whose constant is used for runs like it."""

    name: str  # Its name, as ``launch status`` shows it.
    spec: RunSpec  # The run.
    ratio: float  # Measured / uncorrected predicted speed.


class Own(NamedTuple):
    """Statistics of the measured runs of one key."""

    value: float  # The median of their ratios.
    deviation: float  # The standard deviation of the logarithms of ratio / median.
    runs: int  # The number of runs, one per layout.
    nodes: int  # The number of nodes of the largest.


def of_rows(rows: Iterable[Row]) -> dict[Key, Own]:
    """The statistics of all keys with enough measured runs."""
    layouts: dict[Key, dict[str, Row]] = {}
    for row in rows:
        if counts(row):
            layouts.setdefault(Key.of(row), {})[row.layout] = row
    return {key: _own(list(found.values())) for key, found in layouts.items() if len(found) >= LEAST_LAYOUTS}


def counts(row: Row) -> bool:
    """True if a run may contribute to a constant."""
    return why_not(row) is None


def why_not(row: Row) -> str | None:
    """Why a run contributes to no constant; None if it may."""
    if row.left_out is not None:
        return row.left_out
    if row.ratio is None:
        return "its speed was not predicted" if row.predicted.uncorrected is None else "its speed was not measured"
    if row.calibration != calibration.version():
        return "it was predicted by another version of the speed model"
    return None


def _own(rows: Sequence[Row]) -> Own:
    from statistics import median, stdev  # Late, because most checks have no measured runs.

    ratios = [row.ratio or math.nan for row in rows]
    value = median(ratios)
    deviation = stdev(math.log(ratio / value) for ratio in ratios)
    return Own(value=value, deviation=deviation, runs=len(rows), nodes=max(row.nodes for row in rows))


def constant_of(spec: RunSpec, table: Mapping[Key, Own]) -> Constant | None:
    """The constant for a run; None if too few runs of its key were measured."""
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
    """The anchor's constant, for a run with its engine, its card, and experts if it has them; None for other runs.

    The band says how far measured runs on several nodes were from the prediction anchored to a run on one node, either
    of the same layout except for replicas, or of another (``anchored`` in ``calibration.json``).
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
    """A run's model and layout without its replicas: equal for runs that differ only in nodes and global batch."""
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
        own: The ``n`` runs, whose log ratios have the standard deviation ``s``.
        shipped: The shipped constant, whose band has the log width ``a``. It counts as ``k`` runs, so that a few runs
            that happen to agree do not make a narrow band, while many runs get their own width.
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
    """The storage bandwidth of measured runs."""

    bandwidth: float  # Bytes/s from the start of a checkpoint until it is complete.
    blocking: float | None  # Share of that time during which training waited; None if no run wrote in the background.
    runs: int  # The number of runs.
    nodes: int  # The number of nodes of each.


def storage_of(rows: Iterable[Row], cluster: str, nodes: int, checkpoint_bytes: int) -> Storage | None:
    """The storage bandwidth in the newest runs on a kind of cluster; None if none measured it.

    Only runs with the most nodes count, among those with at most ``nodes``, the nodes of the run to predict.
    """
    least = min(GIB, checkpoint_bytes // _MOST_TIMES_SMALLER)
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
