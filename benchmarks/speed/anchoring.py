"""Runs on several nodes predicted by a measured run of one node, as ``launch plan --anchor RUN`` predicts them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import replace

from benchmarks.speed.estimating import Judged
from benchmarks.speed.families import not_counted
from launcher.estimate.speed.calibration import Constant
from launcher.preflight.measured.constants import layout_of


def by_one_node(items: Iterable[Judged], *, alike: bool) -> list[Judged]:
    """Pairs of a scored multi-node run and a one-node run of the same source, framework, card and format.

    With ``alike`` those of the same model and layout but for copies, without it those of another.
    """
    groups = defaultdict[Hashable, list[Judged]](list)
    for item in items:
        row = item.row
        if not_counted(row) is None and "512 GPUs" not in row.flags:
            groups[row.family, row.framework, row.gpu, row.precision].append(item)
    return [
        _by(anchor, item)
        for rows in groups.values()
        for anchor in rows
        if anchor.row.run.cluster.nodes == 1
        for item in rows
        if item.row.run.cluster.nodes > 1 and alike == (layout_of(item.row.run) == layout_of(anchor.row.run))
    ]


def _by(anchor: Judged, item: Judged) -> Judged:
    value = anchor.row.measured / anchor.raw
    constant = Constant(value=value, low=1.0, high=1.0, rows=1, whose=anchor.row.name)
    return replace(item, predicted=item.raw * value, constant=constant)
