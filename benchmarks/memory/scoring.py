"""Scores from predicted and measured bytes."""

from __future__ import annotations

import statistics
from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from benchmarks.memory.row import Counter, Row
from launcher import backends
from launcher.base import registry
from launcher.estimate.memory.estimate import RankTerms, estimate, rank_terms
from launcher.estimate.memory.moments import MOMENTS, Moment
from launcher.estimate.memory.result import MemoryEstimate
from launcher.estimate.memory.terms import OUTSIDE_PILES
from launcher.preflight import verdict

COUNTERS: tuple[Counter, ...] = ("static", "allocated", "reserved", "device")


_AFTER_THE_OPTIMIZER: frozenset[Moment] = frozenset(("step", "idle", "checkpoint_save"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A row with its estimate, and the allocated peak of its first step where that was measured."""

    row: Row
    estimate: MemoryEstimate
    called_fitting: bool
    first_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A line of the answer (benchmarks/README.md); shares and errors are fractions, None where nothing is scored."""

    file: str
    counter: str
    rows: int
    left_out: dict[str, int]
    median: float | None
    p90: float | None
    worst_under: float | None
    worst_over: float | None
    oom_called_fitting: float | None
    fitting_called_oom: float | None

    def as_dict(self) -> dict[str, object]:
        """The form of ``--json``."""
        return asdict(self)


def judged(row: Row) -> Judged:
    """Estimate one row that has a specification."""
    if row.spec is None:
        raise AssertionError("a row without a specification is left out")
    family = registry.load("families", row.spec.model.family)
    strategies = [registry.load("strategies", name) for name in registry.names("strategies")]
    backend = row.backend or backends.of(row.spec)
    answer = estimate(row.spec, family=family, strategies=strategies, backend=backend)
    first = None
    if row.first_step and row.stage is not None:
        first = _first_step(rank_terms(row.spec, family=family, strategies=strategies, backend=backend)[row.stage])
    fits = verdict.judge(row.spec, answer).may_start
    return Judged(row=row, estimate=answer, called_fitting=fits, first_step=first)


def _first_step(rank: RankTerms) -> int:
    """The allocated peak of the first step, before optimizer states exist."""
    return max(
        sum(
            term.bytes
            for term in rank.at(moment)
            if term.pile not in OUTSIDE_PILES and (term.pile != "optimizer_states" or moment in _AFTER_THE_OPTIMIZER)
        )
        for moment in MOMENTS
    )


def predicted(item: Judged, counter: Counter) -> int:
    """The estimate of one counter, of the stage that was measured."""
    answer, stage = item.estimate, item.row.stage
    if counter == "reserved" and item.row.reserved is not None:
        return item.row.reserved()
    if counter == "device":
        return answer.peak.device_bytes
    if stage is None:
        peak = answer.peak
        whole = {"static": answer.static_bytes, "allocated": peak.allocated_bytes, "reserved": peak.reserved_bytes}
        return whole[counter]
    if counter == "allocated" and item.first_step is not None:
        return item.first_step
    rank = answer.ranks[stage]
    one = {"static": rank.static_bytes, "allocated": rank.allocated_bytes, "reserved": rank.reserved_bytes}
    return one[counter]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of one file: those with an estimate, and how many are left out for which reason."""

    file: str
    items: tuple[Judged, ...]
    left_out: dict[str, int]


def judged_rows(file: str, rows: Iterable[Row]) -> Rows:
    """Estimate every row of a file that has a specification."""
    everything = list(rows)
    return Rows(
        file=file,
        items=tuple(judged(row) for row in everything if row.spec is not None),
        left_out=dict(Tally(row.left_out for row in everything if row.left_out is not None)),
    )


def scores(file: str, rows: Iterable[Row]) -> Iterator[Score]:
    """The lines of one file's rows."""
    return lines(judged_rows(file, rows))


def lines(rows: Rows) -> Iterator[Score]:
    """The lines of one file: by counter, rows with soft fields and likely OOMs apart."""
    file, items, left_out = rows.file, rows.items, rows.left_out
    for soft in (False, True):
        part = [item for item in items if item.row.soft == soft]
        for counter in COUNTERS:
            measured = [item for item in part if counter in item.row.measured]
            if measured:
                yield _score(file, counter + (" (soft)" if soft else ""), counter, measured, part, left_out)
    likely = [item for item in items if item.row.oom == "likely"]
    if likely:
        yield _likely(file, likely, left_out)


def _score(
    file: str, name: str, counter: Counter, measured: list[Judged], part: list[Judged], left_out: dict[str, int]
) -> Score:
    errors = sorted(predicted(item, counter) / item.row.measured[counter] - 1 for item in measured)
    sizes = sorted(abs(error) for error in errors)
    return Score(
        file=file,
        counter=name,
        rows=len(measured),
        left_out=left_out,
        median=statistics.median(sizes),
        p90=sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))],
        worst_under=min(errors[0], 0.0),
        worst_over=max(errors[-1], 0.0),
        oom_called_fitting=_share(part, oom="true", fitting=True),
        fitting_called_oom=_share(part, oom="false", fitting=False),
    )


def _likely(file: str, items: list[Judged], left_out: dict[str, int]) -> Score:
    """The line of runs that probably ran out of memory, which is all that was measured."""
    return Score(
        file=file,
        counter="device (oom=likely)",
        rows=len(items),
        left_out=left_out,
        median=None,
        p90=None,
        worst_under=None,
        worst_over=None,
        oom_called_fitting=sum(item.called_fitting for item in items) / len(items),
        fitting_called_oom=None,
    )


def _share(items: list[Judged], *, oom: str, fitting: bool) -> float | None:
    known = [item for item in items if item.row.oom == oom]
    if not known or not any(item.row.oom == "true" for item in items):
        return None
    return sum(item.called_fitting == fitting for item in known) / len(known)
