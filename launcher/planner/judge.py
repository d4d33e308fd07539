"""Answers the search's questions about one run: is it valid, does it fit, how long does a step take."""

from collections.abc import Iterator, Sequence

from launcher.base.errors import ConfigError
from launcher.estimate.memory.estimate import needs, needs_within
from launcher.estimate.rank.model import Parts
from launcher.estimate.speed.calibration import Constant
from launcher.estimate.speed.estimate import Chunking, least_of_schedules, least_seconds, step_seconds
from launcher.estimate.speed.result import SpeedEstimate
from launcher.preflight import assess, evidence, findings, pricing, verdict
from launcher.preflight.pricing import Measured
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec


class Preflight:
    """The pre-flight's rules and estimates; benchmarks subclass it to substitute measured frameworks for backends."""

    def __init__(self, measured: Measured | None = None, *, unmeasured: bool = False) -> None:
        """``unmeasured`` is true to rank modes that no measurement backs like the others."""
        self._measured, self._unmeasured = measured, unmeasured
        self._refused: dict[str, ConfigError] = {}

    def refuse(self, spec: RunSpec, error: ConfigError) -> None:
        """Treat a run as invalid from now on, because its engine's own validator refused it."""
        self._refused[spec.hash] = error

    def parts(self, spec: RunSpec) -> Parts:
        """Family, strategies and backend of a run."""
        return assess.parts(spec)

    def errors(self, spec: RunSpec) -> Iterator[ConfigError]:
        """The errors of a run as in ``check``, except for rules that no layout breaks."""
        yield from findings.broken_by_change(spec)
        if self._refused and (error := self._refused.get(spec.hash)) is not None:
            yield error

    def verdict(self, spec: RunSpec) -> Verdict:
        """The verdict on a valid run's memory; without exact bytes if the run needs far too much."""
        capacity, parts = spec.rank_memory_bytes, self.parts(spec)
        if capacity is None:
            return verdict.judge(spec, needs(spec, **parts))
        found = needs_within(spec, capacity, **parts)
        return verdict.beyond(capacity) if found is None else verdict.judge(spec, found)

    def behind(self, spec: RunSpec) -> tuple[str, ...]:
        """The parts of a run's mode that no measurement backs, for which it ranks behind others.

        Empty if all modes rank alike, or if the run was rehearsed on a GPU.
        """
        lacking = () if self._unmeasured else assess.unmeasured(spec)
        found = evidence.read(spec) if lacking else None
        return () if found is not None and found.is_whole and found.device == "cuda" else lacking

    def seconds(self, spec: RunSpec) -> float | None:
        """Seconds per step of a valid run; None if unknown."""
        return step_seconds(spec, **self.parts(spec), measured=self._own(spec))

    def least_seconds(self, spec: RunSpec, chunkings: Sequence[Chunking]) -> float | None:
        """A lower bound on the seconds per step of all runs with these degrees and micro-batch; None if unknown.

        It counts the passes of the slowest stage and the smallest bubble, without traffic of states or the optimizer.
        """
        return least_seconds(spec, chunkings, **self.parts(spec), measured=self._own(spec))

    def least_of_schedules(self, spec: RunSpec, chunkings: Sequence[Chunking]) -> Sequence[float] | None:
        """Lower bounds for each of some schedules, including the least time that the states take."""
        return least_of_schedules(spec, chunkings, **self.parts(spec), measured=self._own(spec))

    def speed(self, spec: RunSpec, verdict: Verdict) -> SpeedEstimate | None:
        """The full speed estimate of a run, as in ``check``."""
        return pricing.predicted(spec, self.parts, verdict, self._measured).speed

    def _own(self, spec: RunSpec) -> Constant | None:
        return None if self._measured is None else self._measured(spec)
