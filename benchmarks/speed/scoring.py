"""Errors of predictions, and how well they choose among the layouts of a problem."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.speed.estimating import Judged

type Speed = Callable[[Judged], float]
"""A prediction of one row, in tokens a second and GPU."""

LAYOUTS = 3
"""Layouts from which on a problem is a choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The answer to one problem.

    Attributes:
        pick: Measured speed of what is predicted fastest, as a share of the best measured.
        spearman: Correlation of the ranks of predicted and of measured speed; None where one of them is constant.
    """

    pick: float
    spearman: float | None


def errors(items: Iterable[Judged], speed: Speed) -> list[float]:
    """|predicted / measured - 1|, ascending."""
    return sorted(abs(speed(item) / item.row.measured - 1) for item in items)


def median(values: Sequence[float]) -> float | None:
    """The median; None of nothing."""
    return statistics.median(values) if values else None


def ninetieth(ordered: Sequence[float]) -> float | None:
    """The 90th percentile of ascending values; None of nothing."""
    return ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))] if ordered else None


def geometric_mean(values: Sequence[float]) -> float | None:
    """The geometric mean; None of nothing."""
    return math.exp(statistics.fmean(math.log(value) for value in values)) if values else None


def problems(items: Iterable[Judged]) -> Mapping[str, list[Judged]]:
    """The rows of each problem with three layouts or more."""
    together = defaultdict[str, list[Judged]](list)
    for item in items:
        together[item.row.problem].append(item)
    return {name: rows for name, rows in together.items() if len({item.row.layout for item in rows}) >= LAYOUTS}


def choice(items: Sequence[Judged], speed: Speed) -> Choice:
    """The choice among the rows of one problem; of equal predictions, to six digits, what needs the least memory."""
    picked = min(items, key=lambda item: (-float(f"{speed(item):.6g}"), item.memory_bytes))
    best = max(item.row.measured for item in items)
    predicted, measured = [speed(item) for item in items], [item.row.measured for item in items]
    spearman = None
    if len(set(predicted)) > 1 and len(set(measured)) > 1:
        spearman = statistics.correlation(predicted, measured, method="ranked")
    return Choice(pick=picked.row.measured / best, spearman=spearman)
