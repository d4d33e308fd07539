"""The search's questions about one run: is it valid, does it fit, how long does a step take."""

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
    """Rules and estimates, as the pre-flight has them; the benchmarks put measured frameworks in a backend's place."""

    def __init__(self, measured: Measured | None = None, *, unmeasured: bool = False) -> None:
        """``unmeasured`` is true to rank modes that nothing measured backs like the others."""
        self._measured, self._unmeasured = measured, unmeasured
        self._refused: dict[str, ConfigError] = {}

    def refuse(self, spec: RunSpec, error: ConfigError) -> None:
        """Take a run as invalid from now on, as its engine's own validator has refused it."""
        self._refused[spec.hash] = error

    def parts(self, spec: RunSpec) -> Parts:
        """Family, strategies and backend of a run."""
        return assess.parts(spec)

    def errors(self, spec: RunSpec) -> Iterator[ConfigError]:
        """The errors of a run as ``check`` has them, apart from rules that no layout breaks."""
        yield from findings.broken_by_change(spec)
        if self._refused and (error := self._refused.get(spec.hash)) is not None:
            yield error

    def verdict(self, spec: RunSpec) -> Verdict:
        """The verdict on a valid run's memory; of a run that needs far too much no more than that."""
        capacity, parts = spec.rank_memory_bytes, self.parts(spec)
        if capacity is None:
            return verdict.judge(spec, needs(spec, **parts))
        found = needs_within(spec, capacity, **parts)
        return verdict.beyond(capacity) if found is None else verdict.judge(spec, found)

    def behind(self, spec: RunSpec) -> tuple[str, ...]:
        """The parts of a run's mode for which it stands behind others, as nothing measured backs them.

        None if asked to rank all alike, or if a GPU rehearsed it.
        """
        lacking = () if self._unmeasured else assess.unmeasured(spec)
        found = evidence.read(spec) if lacking else None
        return () if found is not None and found.is_whole and found.device == "cuda" else lacking

    def seconds(self, spec: RunSpec) -> float | None:
        """Seconds of a step of a valid run; None where that is unknown."""
        return step_seconds(spec, **self.parts(spec), measured=self._own(spec))

    def least_seconds(self, spec: RunSpec, chunkings: Sequence[Chunking]) -> float | None:
        """A bound below the seconds of every run with this one's degrees and micro-batch; None where unknown.

        The passes of the slowest stage and the least bubble, without the traffic of the states and the optimizer.
        """
        return least_seconds(spec, chunkings, **self.parts(spec), measured=self._own(spec))

    def least_of_schedules(self, spec: RunSpec, chunkings: Sequence[Chunking]) -> Sequence[float] | None:
        """Such bounds for each of some schedules, with the least that the states take."""
        return least_of_schedules(spec, chunkings, **self.parts(spec), measured=self._own(spec))

    def speed(self, spec: RunSpec, verdict: Verdict) -> SpeedEstimate | None:
        """The whole estimate of a run's speed, as ``check`` has it."""
        return pricing.predicted(spec, self.parts, verdict, self._measured).speed

    def _own(self, spec: RunSpec) -> Constant | None:
        return None if self._measured is None else self._measured(spec)
