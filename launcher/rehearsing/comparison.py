"""Compares a measured rank with its estimate, and extrapolates from two depths to the whole model."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from launcher.base.frozen import dataclass
from launcher.estimate.memory.breakdown import allocated_piles
from launcher.estimate.memory.estimate import RankTerms, rank_terms
from launcher.estimate.memory.moments import MOMENTS, PHASES, Moment
from launcher.estimate.memory.terms import OUTSIDE_PILES
from launcher.job.memory import PileRow, Rehearsed, RehearsedPhase
from launcher.preflight.assess import parts
from launcher.rehearsing.result import Built, Counters, Phase
from launcher.spec import RunSpec

STRAIGHT = 0.02
"""Largest error of the extrapolation, applied to estimates, that still allows a verdict: twice the 1% by which a
rehearsed rank may differ from the same rank of the real run."""

_COMMUNICATORS = "communicators"  # A pile that a rank has in the run, but not alone.


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRank:
    """The estimate of one rank, phase by phase."""

    phases: dict[str, Counters]  # Its peaks by phase.
    piles: dict[str, dict[str, int]]  # Allocated bytes by pile at the peak of each phase.
    outside_bytes: int  # Context and communicators at its peak.
    communicators_bytes: int  # The communicators' part, which a rank alone does not have.

    @property
    def peak_bytes(self) -> int:
        """Bytes allocated at the peak."""
        return max(counters.allocated_bytes or 0 for counters in self.phases.values())


def predict(spec: RunSpec, stage: int) -> PredictedRank:
    """The estimate for a rank of a pipeline stage."""
    rank = next(rank for rank in rank_terms(spec, **parts(spec)) if rank.model.view.stage == stage)
    moments = {phase: max((each for each in MOMENTS if MOMENTS[each] == phase), key=rank.allocated) for phase in PHASES}
    communicators = [term.bytes for term in rank.at(rank.peak[1]) if term.pile == _COMMUNICATORS]
    return PredictedRank(
        phases={phase: _predicted_counters(rank, moment) for phase, moment in moments.items()},
        piles={phase: allocated_piles(rank, moment) for phase, moment in moments.items()},
        outside_bytes=rank.outside_bytes,
        communicators_bytes=sum(communicators),
    )


def _predicted_counters(rank: RankTerms, moment: Moment) -> Counters:
    allocated = rank.allocated(moment)
    reserved = allocated + rank.lost(allocated).bytes
    outside = sum(term.bytes for term in rank.at(moment) if term.pile in OUTSIDE_PILES and term.pile != _COMMUNICATORS)
    return Counters(
        allocated_bytes=allocated,
        needed_bytes=rank.needed(allocated),
        reserved_bytes=reserved,
        device_bytes=reserved + outside,
    )


def built(rehearsed: Rehearsed, estimate: PredictedRank, *, rank_layers: int, folder: Path) -> Built:
    """One model that was built, with its measurements and its estimate."""
    order = [*PHASES, *(phase for phase in rehearsed.phases if phase not in PHASES)]
    seconds = rehearsed.step_seconds
    return Built(
        layers=rehearsed.layers,
        rank_layers=rank_layers,
        phases=tuple(
            Phase(
                phase=phase,
                predicted=estimate.phases.get(phase, Counters()),
                measured=_counters(rehearsed.phases.get(phase), on_cpu=rehearsed.device == "cpu"),
            )
            for phase in order
        ),
        static_bytes=rehearsed.static_bytes,
        step_seconds=statistics.median(seconds) if seconds else None,
        ran_out=rehearsed.ran_out,
        folder=str(folder),
    )


def _counters(peak: RehearsedPhase | None, *, on_cpu: bool) -> Counters:
    if peak is None:
        return Counters()
    return Counters(
        allocated_bytes=peak.allocated_bytes,
        needed_bytes=peak.allocated_bytes if on_cpu else None,
        reserved_bytes=peak.reserved_bytes,
        device_bytes=peak.device_bytes,
    )


def at(layers: int, depths: Sequence[int], values: Sequence[float]) -> float:
    """The value at ``layers`` on the line through two depths: ``v1 + (v2 - v1) / (n2 - n1) * (n - n1)``."""
    (first, second), (low, high) = depths, values
    return low + (high - low) / (second - first) * (layers - first)


def extrapolated(models: Sequence[Built], estimate: PredictedRank, layers: int) -> tuple[Phase, ...]:
    """The phases of the whole model, extrapolated from two depths, with its own estimate."""
    first, second = models
    depths = (first.rank_layers, second.rank_layers)
    return tuple(
        Phase(
            phase=low.phase,
            predicted=estimate.phases.get(low.phase, Counters()),
            measured=_through(depths, (low.measured, high.measured), layers),
        )
        for low, high in zip(first.phases, second.phases, strict=True)
    )


def _through(depths: tuple[int, int], counters: tuple[Counters, Counters], layers: int) -> Counters:
    def value(name: str) -> int | None:
        ends = [getattr(each, name) for each in counters]
        return None if None in ends else round(at(layers, depths, ends))

    return Counters(**{field.name: value(field.name) for field in fields(Counters)})


def bent(depths: Sequence[int], estimates: Sequence[PredictedRank], whole: PredictedRank, layers: int) -> float:
    """The whole model's estimate relative to the extrapolation from the estimates of two depths, minus one."""
    return whole.peak_bytes / at(layers, depths, [estimate.peak_bytes for estimate in estimates]) - 1


def seconds(models: Sequence[Built], layers: int) -> float | None:
    """Seconds per step of the whole model; None if a depth was not timed."""
    known = [model.step_seconds for model in models if model.step_seconds is not None]
    if len(known) < len(models):
        return None
    if len(models) == 1:
        return known[0]
    # Timings scatter, but a deeper model is never faster: the whole one takes at least as long as the deeper one.
    return max(known[-1], at(layers, [model.rank_layers for model in models], known))


def fullest(phases: Sequence[Phase]) -> Phase | None:
    """The phase with the most allocated bytes; None if none was measured."""
    known = [phase for phase in phases if phase.measured.allocated_bytes is not None]
    return max(known, key=lambda phase: phase.measured.allocated_bytes or 0, default=None)


def piles(
    phase: Phase | None, estimate: PredictedRank, models: Sequence[Rehearsed], depths: Sequence[int], layers: int
) -> tuple[PileRow, ...]:
    """The piles of a phase; with two depths, measured piles are extrapolated and clipped at zero."""
    if phase is None:
        return ()
    said = estimate.piles.get(phase.phase, {})
    told = [model.phases[phase.phase].piles for model in models if phase.phase in model.phases]
    measured = _piles_at([each for each in told if each is not None], len(models), depths, layers)
    names = [*said, *(name for name in measured or {} if name not in said)]
    found = (
        PileRow(
            pile=name,
            predicted_bytes=said.get(name, 0),
            measured_bytes=None if measured is None else measured.get(name, 0),
        )
        for name in names
    )
    return tuple(sorted(found, key=lambda pile: -pile.largest_bytes))


def _piles_at(
    told: Sequence[Mapping[str, int]], models: int, depths: Sequence[int], layers: int
) -> dict[str, int] | None:
    if not told or len(told) < models:
        return None
    if len(told) == 1:
        return dict(told[0])
    names = dict.fromkeys(name for each in told for name in each)
    values = {name: round(at(layers, depths, [each.get(name, 0) for each in told])) for name in names}
    return {name: max(0, value) for name, value in values.items()}
