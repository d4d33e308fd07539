"""The planner's questions answered for a framework that is only measured: the pre-flight with what stands in for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.speed.row import Row
from launcher.base.errors import ConfigError
from launcher.estimate.memory.estimate import needs
from launcher.estimate.rank.model import Parts
from launcher.planner.judge import Preflight
from launcher.planner.keys import SEARCHED
from launcher.preflight import assess, findings, verdict
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec


class StandInJudge(Preflight):
    """The memory and speed models with a measured framework instead of the backend."""

    def row(self, spec: RunSpec) -> Row:
        """The measured run whose framework runs this one."""
        raise NotImplementedError

    def parts(self, spec: RunSpec) -> Parts:
        """With the framework's way to execute a step."""
        return {**assess.parts(spec), "backend": self.row(spec).backend}

    def verdict(self, spec: RunSpec) -> Verdict:
        """The verdict by the framework's memory, with all that is lacking if the run does not fit."""
        memory, parts = self.row(spec).memory, self.parts(spec)
        return verdict.judge(spec, needs(spec, **(parts if memory is None else {**parts, "backend": memory})))


class OfRows(StandInJudge):
    """Judges only measured runs, each by its own row, since their kernels may differ."""

    def __init__(self, rows: Mapping[str, Row]) -> None:
        """Begin.

        Args:
            rows: The rows by their names, which are the names of their runs.
        """
        super().__init__()
        self._rows = rows

    def row(self, spec: RunSpec) -> Row:
        """The row of this name."""
        return self._rows[spec.run.name or ""]

    def errors(self, spec: RunSpec) -> Iterator[ConfigError]:
        """No errors: all of these runs were started."""
        yield from ()


class OfFramework(StandInJudge):
    """Judges any layout of the engine by the framework and kernels of one row."""

    def __init__(self, row: Row, spec: RunSpec) -> None:
        """Begin.

        Args:
            row: The row.
            spec: Its run.
        """
        super().__init__()
        self._row = row
        self._others = {error.path for error in findings.broken_by_change(spec)} - set(SEARCHED)

    def row(self, spec: RunSpec) -> Row:
        """The measured run, whatever the spec."""
        return self._row

    def errors(self, spec: RunSpec) -> Iterator[ConfigError]:
        """Errors of the engine, except for non-layout keys with which the measured run did run."""
        return (error for error in findings.broken_by_change(spec) if error.path not in self._others)
