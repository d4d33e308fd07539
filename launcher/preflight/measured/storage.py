"""How fast a job's ranks together wrote checkpoints, by the measured runs of the same kind of cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from launcher.base.units import GIB
from launcher.preflight.measured.row import Row

_SMALLER = 100
"""Times by which a measured checkpoint may be smaller than one that is asked about, if it has less than a GiB: of small
ones the seconds are those of opening files and of waiting for each other, and say nothing of bytes."""

_NEWEST = 5
"""Runs whose median is taken: storage changes, and one run may have met others on it."""


class Storage(NamedTuple):
    """What was measured of storage.

    Attributes:
        bandwidth: Bytes/s from the begin of a checkpoint until it is whole.
        blocking: Share of that time for which training waited while the rest was written beside it; None where no run
            wrote so.
        runs: The runs.
        nodes: Nodes of each of them.
    """

    bandwidth: float
    blocking: float | None
    runs: int
    nodes: int


def of_rows(rows: Iterable[Row], cluster: str, nodes: int, checkpoint_bytes: int) -> Storage | None:
    """What storage gave the newest runs of a cluster; None where none of them says it.

    Args:
        rows: The measured runs, the newest last.
        cluster: The kind of the cluster.
        nodes: Nodes of the run that is asked about; those runs count that had most, and no more than it.
        checkpoint_bytes: Of its checkpoint.
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
