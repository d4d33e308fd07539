"""Errors of predictions, and how well they choose among the layouts of a problem."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.speed.estimating import Judged
from launcher.estimate.speed.calibration import Constant

type Speed = Callable[[Judged], float]
"""A prediction of one row, in tokens a second and GPU."""

LAYOUTS = 3
"""Layouts from which on a problem is a choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The answers to problems of choice.

    Attributes:
        problems: How many there are.
        pick: Geometric mean of the measured speed of what is predicted fastest, as a share of the best measured.
        pick_worst: The least of these shares.
        spearman: Median of the correlations of the ranks of predicted and of measured speed.
    """

    problems: int
    pick: float | None
    pick_worst: float | None
    spearman: float | None


def errors(items: Iterable[Judged], speed: Speed) -> list[float]:
    """|predicted / measured - 1|, ascending."""
    return sorted(abs(speed(item) / item.row.measured - 1) for item in items)


def errors_of(items: Sequence[Judged], constants: Sequence[Constant]) -> list[float]:
    """The same of predictions with other constants, one for each run."""
    pairs = zip(items, constants, strict=True)
    return sorted(abs(item.raw * factor.value / item.row.measured - 1) for item, factor in pairs)


def within(items: Sequence[Judged], constants: Sequence[Constant]) -> float | None:
    """The share of runs whose measured speed lies in the band around the prediction with their constant."""
    pairs = [(item.row.measured / (item.raw * one.value), one) for item, one in zip(items, constants, strict=True)]
    return mean(float(one.low <= ratio <= one.high) for ratio, one in pairs)


def median(values: Sequence[float]) -> float | None:
    """The median; None of nothing."""
    return statistics.median(values) if values else None


def ninetieth(ordered: Sequence[float]) -> float | None:
    """The 90th percentile of ascending values; None of nothing."""
    return ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))] if ordered else None


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of those that are something."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def geometric_mean(values: Sequence[float]) -> float | None:
    """The geometric mean; None of nothing."""
    return math.exp(statistics.fmean(math.log(value) for value in values)) if values else None


def problems(items: Iterable[Judged]) -> Mapping[str, list[Judged]]:
    """The rows of each problem with three layouts or more."""
    together = defaultdict[str, list[Judged]](list)
    for item in items:
        together[item.row.problem].append(item)
    return {name: rows for name, rows in together.items() if len({item.row.layout for item in rows}) >= LAYOUTS}


def choices(items: Iterable[Judged], speed: Speed) -> Choices:
    """The choices among the rows of each problem."""
    found = problems(items).values()
    picks = [picked(rows, speed).row.measured / max(item.row.measured for item in rows) for rows in found]
    ranks = [rank for rows in found if (rank := spearman(rows, speed)) is not None]
    return Choices(
        problems=len(picks), pick=geometric_mean(picks), pick_worst=min(picks, default=None), spearman=median(ranks)
    )


def picked(items: Iterable[Judged], speed: Speed) -> Judged:
    """The row that is predicted fastest; of predictions equal to six digits, what needs the least memory."""
    return min(items, key=lambda item: (-float(f"{speed(item):.6g}"), item.memory_bytes))


def spearman(items: Sequence[Judged], speed: Speed) -> float | None:
    """The correlation of ranks; None where all are predicted or measured alike."""
    predicted, measured = [speed(item) for item in items], [item.row.measured for item in items]
    if len(set(predicted)) == 1 or len(set(measured)) == 1:
        return None
    return statistics.correlation(predicted, measured, method="ranked")
