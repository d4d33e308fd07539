"""The answer of a rehearsal as data, and as the part ``rehearse`` of the document of ``launch rehearse --json``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from launcher.base.files import JsonObject
from launcher.base.units import Pair
from launcher.job.memory import PileRow
from launcher.preflight.evidence import Evidence, Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Bytes at the peak of a phase in the four counters that people read; None is not known.

    Attributes:
        allocated_bytes: From torch's allocator; on the CPU the bytes of live tensors.
        needed_bytes: The least with which the allocator does not run out: measured on the CPU alone, where it is the
            allocated bytes, since a caching allocator does not tell.
        reserved_bytes: By the caching allocator.
        device_bytes: Of the process.
    """

    allocated_bytes: int | None = None
    needed_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase of a step: the estimate and the measurement of the same model on the same device."""

    phase: str
    predicted: Counters
    measured: Counters

    @property
    def error(self) -> float | None:
        """Predicted over measured allocated bytes, less one."""
        return Pair(self.predicted.allocated_bytes, self.measured.allocated_bytes).error

    def as_dict(self) -> JsonObject:
        """With the allocated bytes once more, as docs/contract/documents.md has them."""
        own = {"predicted_bytes": self.predicted.allocated_bytes, "measured_bytes": self.measured.allocated_bytes}
        return {**asdict(self), **own}


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """One model that was built and trained.

    Attributes:
        layers: Of the model.
        rank_layers: Of those, the rank's.
        phases: What was measured of it.
        static_bytes: Allocated between two steps.
        step_seconds: The median of the steps that were only timed; None where there was none.
        ran_out: True where memory ended first.
        folder: Its files, with its log.
    """

    layers: int
    rank_layers: int
    phases: tuple[Phase, ...]
    static_bytes: int | None
    step_seconds: float | None
    ran_out: bool
    folder: str

    def as_dict(self) -> JsonObject:
        """As JSON."""
        return {**asdict(self), "phases": [phase.as_dict() for phase in self.phases]}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRehearsed:
    """One rank.

    Attributes:
        rank: Of the run's.
        stage: Its pipeline stage.
        rank_layers: Layers that it runs in the whole model.
        phases: Of the whole model, or of the only depth that was built: measured, or extrapolated from two depths.
        fullest: The phase with the most allocated bytes; None where nothing was measured.
        piles: In that phase.
        step_seconds: Of the compute alone; None where it was not timed.
        built: The models that were built, the shallowest first.
        extrapolated: True if ``phases`` follow from two depths.
        whole: False where they are of one depth, which is not the model's.
        bent: By which the estimate of the whole model differs from what its estimates of the two depths extrapolate to.
        verdict: Measured, against the device of the run.
        evidence: The same as a later run reads it.
    """

    rank: int
    stage: int
    rank_layers: int
    phases: tuple[Phase, ...]
    fullest: str | None
    piles: tuple[PileRow, ...]
    step_seconds: float | None
    built: tuple[Built, ...]
    extrapolated: bool
    whole: bool
    bent: float | None
    verdict: Measured
    evidence: Evidence

    @property
    def ran_out(self) -> bool:
        """True where memory ended first."""
        return any(built.ran_out for built in self.built)

    def as_dict(self) -> JsonObject:
        """As JSON."""
        phases, built = [phase.as_dict() for phase in self.phases], [built.as_dict() for built in self.built]
        return {**asdict(self), "phases": phases, "built": built}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The answer: the rank that needed the most, and all that were rehearsed.

    Attributes:
        ranks: In the order in which they were rehearsed.
        world: Ranks of the run.
        stands_in: True if a processor stood in for the run's GPU.
        method: How memory was measured.
        tokens: Of a step, over all ranks.
        covers: True if the rank is among them that needs the most by the estimate.
    """

    ranks: tuple[RankRehearsed, ...]
    world: int
    stands_in: bool
    method: str
    tokens: int
    covers: bool

    @property
    def worst(self) -> RankRehearsed:
        """The rank whose memory ended, else the one that measured the most."""
        return max(self.ranks, key=lambda one: (one.ran_out, one.evidence.measured_bytes or 0))

    @property
    def evidence(self) -> Evidence:
        """The evidence for a later run: partial where other ranks need more."""
        return replace(self.worst.evidence, partial=self.worst.evidence.partial or not self.covers)

    @property
    def step_seconds(self) -> float | None:
        """The compute of the slowest rank that was timed, for which the others wait."""
        return max((one.step_seconds for one in self.ranks if one.step_seconds is not None), default=None)

    def as_dict(self) -> JsonObject:
        """The part ``rehearse`` of the document: the worst rank, and all of them."""
        worst = {**self.worst.as_dict(), "evidence": asdict(self.evidence)}
        own = {name: getattr(self, name) for name in ("world", "stands_in", "method", "tokens", "covers")}
        return {**worst, **own, "ranks": [one.as_dict() for one in self.ranks]}
