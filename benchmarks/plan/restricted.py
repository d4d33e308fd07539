"""The planner among the layouts that were measured: each is a space of one layout, and the search takes the best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.plan.judges import OfRows
from benchmarks.plan.problems import Problem
from benchmarks.speed.row import Row
from launcher.planner.judge import Preflight
from launcher.planner.keys import SEARCHED
from launcher.planner.parallel_search import searched
from launcher.planner.space import Space
from launcher.spec import RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """The planner's choice among the measured layouts.

    Attributes:
        row: The row that it takes.
        verdict: What its memory is said to be: where nothing fits, the run that lacks least is taken.
        share: Its measured speed over that of the fastest; 0 where it ran out of memory.
    """

    row: Row
    verdict: str
    share: float


def pick(problem: Problem) -> Pick:
    """The planner's choice."""
    rows = {row.name: row for row in problem.rows}
    runs = {name: _named(row) for name, row in rows.items()}
    judge = OfRows(rows)
    shown = searched([_only(run, judge) for run in runs.values()], judge).shown()
    name, verdict = (
        (shown[0].spec.run.name, shown[0].verdict.name) if shown else (_nearest(runs, judge), "does_not_fit")
    )
    row = rows[name or ""]
    return Pick(row=row, verdict=verdict, share=row.measured / problem.winner.measured)


def _only(run: RunSpec, judge: Preflight) -> Space:
    """A search space with only one layout: every key is fixed."""
    return Space.of(run, frozenset(SEARCHED), {}, judge.errors)


def _nearest(runs: Mapping[str, RunSpec], judge: Preflight) -> str:
    """The run that lacks the least memory."""
    return min(runs, key=lambda name: judge.verdict(runs[name]).excess_bytes)


def _named(row: Row) -> RunSpec:
    """The run, with the name of its row."""
    if row.spec is None:
        raise AssertionError("a row of a problem has a specification")
    return replace(row.spec, run=replace(row.spec.run, name=row.name))
