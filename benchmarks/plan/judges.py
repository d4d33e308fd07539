"""The planner's questions answered for a framework that is only measured: by what stands in for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from benchmarks.speed.row import Row
from launcher import families, registry
from launcher.errors import ConfigError
from launcher.memory.estimate import needs
from launcher.planner.judge import Judge
from launcher.preflight import assess, verdict
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec
from launcher.speed.estimate import estimate
from launcher.speed.result import SpeedEstimate


class StandInJudge(Judge):
    """The models of memory and speed with a measured framework in the place of the backend."""

    def row(self, spec: RunSpec) -> Row:
        """The measured run whose framework runs this one."""
        raise NotImplementedError

    def errors(self, spec: RunSpec) -> Iterator[ConfigError]:
        """Those of the engine that the stand-in is based on."""
        return assess.broken_by_change(spec)

    def verdict(self, spec: RunSpec) -> Verdict:
        """By the memory of the framework."""
        row = self.row(spec)
        return verdict.judge(spec, needs(spec, backend=row.memory or row.backend, **_parts(spec)))

    def seconds(self, spec: RunSpec) -> float | None:
        """By its execution."""
        found = self._estimate(spec)
        return None if found is None else found.step_seconds

    def least_seconds(self, spec: RunSpec) -> float | None:
        """As the pre-flight has it: the passes of the slowest stage."""
        found = self._estimate(spec)
        return None if found is None else spec.gradient_accumulation * max(each.seconds for each in found.stages)

    def speed(self, spec: RunSpec, verdict: Verdict) -> SpeedEstimate | None:
        """The whole estimate."""
        return self._estimate(spec)

    def _estimate(self, spec: RunSpec) -> SpeedEstimate | None:
        row = self.row(spec)
        if row.backend is None:
            raise AssertionError("a row without a stand-in has no specification")
        return estimate(spec, backend=row.backend, **_parts(spec))


class OfRows(StandInJudge):
    """Of measured runs alone, each by its own row: their kernels may differ."""

    def __init__(self, rows: Mapping[str, Row]) -> None:
        """Begin.

        Args:
            rows: The rows by their names, which are the names of their runs.
        """
        self._rows = rows

    def row(self, spec: RunSpec) -> Row:
        """The row of this name."""
        return self._rows[spec.run.name or ""]

    def errors(self, spec: RunSpec) -> Iterator[ConfigError]:
        """None: all of them were started."""
        yield from ()


class OfFramework(StandInJudge):
    """Of any layout, all by the framework and the kernels of one row."""

    def __init__(self, row: Row) -> None:
        """Begin.

        Args:
            row: The row.
        """
        self._row = row

    def row(self, spec: RunSpec) -> Row:
        """Always the same."""
        return self._row


def _parts(spec: RunSpec) -> dict[str, Any]:
    return {"family": families.of(spec.model), "strategies": _strategies()}


def _strategies() -> Iterable[Any]:
    return [registry.load("strategies", name) for name in registry.names("strategies")]
