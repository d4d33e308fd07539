"""The piles that were predicted for a moment of a run: those of the recorded settings, by phase and pipeline stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.estimate.memory.estimate import RankTerms
from launcher.estimate.memory.moments import BLOCK_BACKWARD, FORWARD, LATER_BLOCKS_BACKWARD, MOMENTS, Moment, Moments
from launcher.estimate.memory.terms import OUTSIDE_PILES, MemoryTerm
from launcher.preflight import assess, findings
from launcher.spec import RunSpec

_IN_BLOCKS: Moments = BLOCK_BACKWARD | {"forward"}

_BACKWARD_OF: Mapping[int, Moments] = {
    0: frozenset(("block_backward",)),
    1: frozenset(("next_block_backward",)),
}
"""The moments in the backward pass of the stage's last block, and of the one before it."""

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


def is_judged(spec: RunSpec) -> bool:
    """True if a run's model is known and it breaks no rule of this version, so that its memory can be estimated."""
    return not spec.judges_no_model and next(findings.broken_rules(spec), None) is None


def of(spec: RunSpec, rank: int | None, phase: str | None, layer: int | None) -> Predicted:
    """The prediction for a rank in a phase; of an unknown rank for the stage that has most then.

    Args:
        spec: A valid run.
        rank: Of the job; None is unknown.
        phase: As measured; None is any.
        layer: The block that was at work, counted from 0; None is none, or unknown.
    """
    stages = assess.terms_of(spec)
    if rank is not None:
        stages = tuple(each for each in stages if each.model.view.stage == stage_of(spec, rank)) or stages
    broadly = moments_of(phase)
    best = max(stages, key=lambda each: max(each.allocated(moment) for moment in broadly))
    return _at(best, moments_of(phase, layer, best.model.view.layers))


def between_steps(spec: RunSpec, rank: int | None) -> Predicted:
    """The prediction for a rank between two steps; of an unknown rank for the stage that has most then."""
    of_rank = [each for each in assess.terms_of(spec) if rank is None or each.model.view.stage == stage_of(spec, rank)]
    return _at(max(of_rank, key=lambda each: each.allocated("idle")), frozenset(("idle",)))


def _at(best: RankTerms, moments: Moments) -> Predicted:
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


def moments_of(phase: str | None, layer: int | None = None, layers: Sequence[int] = ()) -> Moments:
    """The moments at which a rank may be that is in a phase, and there in a block of its stage's ``layers``."""
    if phase == EVALUATION:
        found: Moments = FORWARD
    else:
        found = frozenset(moment for moment, its in MOMENTS.items() if phase in (None, its))
    if layer is None:
        return found or frozenset(MOMENTS)
    inside = found & _IN_BLOCKS or found or frozenset(MOMENTS)
    if phase != "backward" or layer not in layers:
        return inside
    return found & _BACKWARD_OF.get(len(layers) - 1 - layers.index(layer), _behind(layers.index(layer))) or inside


def _behind(index: int) -> Moments:
    """The moments in the backward pass of a block behind the stage's last two, by its place from the start."""
    if index > 1:
        return LATER_BLOCKS_BACKWARD - {"first_layer_backward"}
    return frozenset(("second_layer_backward",) if index else ("first_layer_backward",))


def stage_of(spec: RunSpec, rank: int) -> int:
    """The pipeline stage of a rank: stages are outermost among the ranks of every engine."""
    return rank * spec.parallel.pipeline // max(1, spec.gpus)


def _piles(rank: RankTerms, moment: Moment) -> dict[str, int]:
    found: dict[str, int] = {}
    for term in rank.at(moment):
        if term.pile not in OUTSIDE_PILES:
            found[term.pile] = found.get(term.pile, 0) + term.bytes
    return found
