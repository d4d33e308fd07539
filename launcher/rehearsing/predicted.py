"""The estimate of one stage's rank, phase by phase: of the whole run, or of the very model that is built."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from launcher.estimate.memory import device
from launcher.estimate.memory.estimate import RankTerms, rank_terms
from launcher.estimate.memory.moments import MOMENTS, PHASES, Moment, Phase
from launcher.estimate.memory.terms import OUTSIDE_PILES
from launcher.preflight.assess import parts
from launcher.rehearsing.result import Counters
from launcher.spec import RunSpec

_ALONE = "communicators"
"""A pile that a rank has in the run and not alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A rank.

    Attributes:
        phases: Its peaks by phase.
        piles: Of each phase the allocated bytes by pile, at its peak.
        outside_bytes: Context and communicators at its peak.
        communicators_bytes: Of these the communicators', which a rank that is alone does not have.
    """

    phases: dict[str, Counters]
    piles: dict[str, dict[str, int]]
    outside_bytes: int
    communicators_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Allocated at the peak."""
        return max(counters.allocated_bytes or 0 for counters in self.phases.values())

    @property
    def device_bytes(self) -> int:
        """Of the process at its peak."""
        return max(counters.device_bytes or 0 for counters in self.phases.values())


def predicted(spec: RunSpec, stage: int) -> Predicted:
    """The estimate of a rank of a stage."""
    rank = next(rank for rank in rank_terms(spec, **parts(spec)) if rank.model.view.stage == stage)
    moments = {phase: _fullest(rank, phase) for phase in PHASES}
    alone = [term.bytes for term in rank.at(rank.peak[1]) if term.pile == _ALONE]
    return Predicted(
        phases={phase: _counters(rank, moment) for phase, moment in moments.items()},
        piles={phase: _piles(rank, moment) for phase, moment in moments.items()},
        outside_bytes=rank.outside_bytes,
        communicators_bytes=sum(alone),
    )


def _fullest(rank: RankTerms, phase: Phase) -> Moment:
    return max((moment for moment in MOMENTS if MOMENTS[moment] == phase), key=rank.allocated)


def _counters(rank: RankTerms, moment: Moment) -> Counters:
    """The four counters at a moment; what the allocator loses is a share of what is allocated, as at the peak."""
    spec, allocated = rank.model.spec, rank.allocated(moment)
    reserved = allocated + device.fragmentation(spec, allocated).bytes
    outside = sum(term.bytes for term in rank.at(moment) if term.pile in OUTSIDE_PILES and term.pile != _ALONE)
    return Counters(
        allocated_bytes=allocated,
        needed_bytes=ceil(allocated * (1 + device.allocator(spec).needed)),
        reserved_bytes=reserved,
        device_bytes=reserved + outside,
    )


def _piles(rank: RankTerms, moment: Moment) -> dict[str, int]:
    found: dict[str, int] = {}
    for term in rank.at(moment):
        if term.pile not in OUTSIDE_PILES:
            found[term.pile] = found.get(term.pile, 0) + term.bytes
    return found
