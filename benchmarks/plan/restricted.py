"""The planner among the layouts that were measured: it searches these as it searches any space, and takes one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from benchmarks.plan.judges import OfRows
from benchmarks.plan.problems import Problem
from benchmarks.speed.row import Row
from launcher.planner.halves import searched
from launcher.planner.space import Frame, Refused, Settings, Space
from launcher.spec import RunSpec

_NAME = "run.name"


@dataclass(frozen=True, kw_only=True)
class Measured(Space):
    """The runs of a problem as a space: each is a frame and a core of its own, and there is no relief."""

    runs: Mapping[str, RunSpec]

    @property
    def relief(self) -> tuple[Settings, ...]:
        """Nothing that could be changed."""
        return ({},)

    def frames(self, refused: Refused) -> Iterator[Frame]:
        """One a run."""
        return (Frame(settings={_NAME: name}, size=1) for name in self.runs)

    def chunkings(self, frame: Frame) -> list[tuple[str, int]]:
        """The run's own schedule and model chunks."""
        parallel = self.runs[frame.settings[_NAME]].parallel
        return [(parallel.schedule, parallel.virtual_pipeline)]

    def cores(self, frame: Frame, refused: Refused) -> Iterator[RunSpec]:
        """The run."""
        yield self.runs[frame.settings[_NAME]]


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
    space = Measured(base=next(iter(runs.values())), fixed=frozenset(), choices={}, losses=(), schedules=(), runs=runs)
    if shown := searched([space], judge).shown():
        name, verdict = shown[0].spec.run.name, shown[0].verdict.name
    else:
        lacks = {name: judge.verdict(spec) for name, spec in runs.items()}
        name = min(lacks, key=lambda each: lacks[each].excess_bytes)
        verdict = "does_not_fit"
    row = rows[name or ""]
    return Pick(row=row, verdict=verdict, share=row.measured / problem.winner.measured)


def _named(row: Row) -> RunSpec:
    """The run, with the name of its row."""
    if row.spec is None:
        raise AssertionError("a row of a problem has a specification")
    return replace(row.spec, run=replace(row.spec.run, name=row.name))
