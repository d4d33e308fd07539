"""The piles that were predicted for a moment of a run: those of the recorded settings, by phase and pipeline stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.memory.estimate import RankTerms
from launcher.memory.moments import BLOCK_BACKWARD, FORWARD, MOMENTS, Moment, Moments
from launcher.memory.terms import OUTSIDE_PILES, MemoryTerm
from launcher.preflight import assess
from launcher.rundir import contents
from launcher.spec import RunSpec

_IN_BLOCKS: Moments = BLOCK_BACKWARD | {"forward"}

EVALUATION = "evaluation"
"""A phase that the memory model does not have: a forward pass beside all that lives between two steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The prediction for the moments at which a rank may have been.

    Attributes:
        piles: The most that each pile has at any of these moments, without what lies outside of torch's allocator.
        terms: The terms of that stage that are alive at one of them.
        moments: These moments.
        total_bytes: The largest sum of piles at one of them.
    """

    piles: Mapping[str, int]
    terms: tuple[MemoryTerm, ...]
    moments: Moments
    total_bytes: int

    def largest_term(self, pile: str) -> MemoryTerm | None:
        """The largest term of a pile: how it was predicted."""
        return max((term for term in self.terms if term.pile == pile), key=lambda term: term.bytes, default=None)


def spec_of(run: Path) -> RunSpec | None:
    """The settings of a run whose model is known and whose record this version reads; else None."""
    try:
        spec = contents.spec_of(run)
    except contents.BadRecord:
        return None
    return None if spec.judges_no_model or next(assess.broken_rules(spec), None) is not None else spec


def of(spec: RunSpec, rank: int | None, phase: str | None, *, in_block: bool) -> Predicted:
    """The prediction for a rank in a phase; of an unknown rank for the stage that has most then.

    Args:
        spec: A valid run.
        rank: Of the job; None is unknown.
        phase: As measured; None is any.
        in_block: True where a block is known to have been at work.
    """
    moments = moments_of(phase, in_block=in_block)
    stages = assess.terms_of(spec)
    if rank is not None:
        stages = tuple(each for each in stages if each.model.view.stage == stage_of(spec, rank)) or stages
    best = max(stages, key=lambda each: max(each.allocated(moment) for moment in moments))
    piles: dict[str, int] = {}
    for moment in moments:
        for pile, size in _piles(best, moment).items():
            piles[pile] = max(piles.get(pile, 0), size)
    return Predicted(
        piles=piles,
        terms=tuple(term for term in best.terms if term.moments & moments),
        moments=moments,
        total_bytes=max(best.allocated(moment) for moment in moments),
    )


def moments_of(phase: str | None, *, in_block: bool) -> Moments:
    """The moments at which a rank may be that is in a phase."""
    if phase == EVALUATION:
        found: Moments = FORWARD
    else:
        found = frozenset(moment for moment, its in MOMENTS.items() if phase in (None, its))
    return (found & _IN_BLOCKS if in_block else found) or found or frozenset(MOMENTS)


def stage_of(spec: RunSpec, rank: int) -> int:
    """The pipeline stage of a rank: stages are outermost among the ranks of every engine."""
    return rank * spec.parallel.pipeline // max(1, spec.gpus)


def _piles(rank: RankTerms, moment: Moment) -> dict[str, int]:
    found: dict[str, int] = {}
    for term in rank.at(moment):
        if term.pile not in OUTSIDE_PILES:
            found[term.pile] = found.get(term.pile, 0) + term.bytes
    return found
