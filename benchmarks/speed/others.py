"""The baselines on the rows of an entry, each after one constant for a framework and GPU, fitted on these very rows."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.speed import baselines
from benchmarks.speed.estimating import Judged
from benchmarks.speed.scoring import Speed, choices, errors, median


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """One baseline's score on the rows that it covers."""

    rows: int
    median: float | None
    pick: float | None
    spearman: float | None


def others(items: Iterable[Judged]) -> Mapping[str, Other]:
    """Each baseline."""
    return {name: _other([item for item in items if name in item.others], name) for name in baselines.names()}


def _other(covered: Sequence[Judged], name: str) -> Other:
    speed = _calibrated(covered, name)
    chosen = choices(covered, speed)
    return Other(rows=len(covered), median=median(errors(covered, speed)), pick=chosen.pick, spearman=chosen.spearman)


def _calibrated(covered: Iterable[Judged], name: str) -> Speed:
    ratios = defaultdict[tuple[str, str], list[float]](list)
    for item in covered:
        ratios[item.row.framework, item.row.gpu].append(item.row.measured / item.others[name])
    constants = {pair: statistics.median(found) for pair, found in ratios.items()}
    return lambda item: item.others[name] * constants[item.row.framework, item.row.gpu]
