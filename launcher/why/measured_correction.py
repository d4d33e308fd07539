"""What was measured of a run carried to its neighbours, so that a way out is judged by what the run really took.

The rule. A pile that formulas count by tokens or by parameters keeps its ratio of measured to predicted, at every
moment: half of the micro-batch is half of the activations, however many there were. Any other pile, one that was not
predicted, what grows from step to step, and all that is of loading or saving keep their difference in bytes, at the
moments of the phase in which they were seen. What is smaller than predicted stays as predicted, since a phase that
ended early has not had its peak. Memory of other processes is added outside of torch's allocator; what the allocator
could not use is added where the neighbour has the same allocator. Where the run itself would fit even so, which it did
not, the bytes that lack are added, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from launcher.estimate.memory.moments import ALWAYS, Moments
from launcher.estimate.memory.terms import MemoryTerm, Pile, term
from launcher.estimate.rank.model import RankModel

BY_SIZE: frozenset[str] = frozenset((
    "parameters",
    "gradients",
    "optimizer_states",
    "master_weights",
    "activations",
    "logits",
    "gather_buffers",
    "reduce_buffers",
))
"""Piles that formulas count by tokens or by parameters."""

_SOURCE = "measured when the run ran out of memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """Bytes beside the prediction, of a pile at some moments."""

    pile: Pile
    moments: Moments
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The differences of one run, as the memory model takes them (``launcher.estimate.memory.estimate.Adjusted``).

    Attributes:
        ratios: Measured over predicted, of piles by size.
        added: Bytes beside the prediction.
        unusable_bytes: What the caching allocator had reserved and could not use, beyond what is predicted.
        allocator: The allocator that this was measured with.
    """

    ratios: Mapping[str, Fraction]
    added: tuple[Added, ...] = ()
    unusable_bytes: int = 0
    allocator: str = "default"

    def __call__(self, rank: RankModel, terms: Sequence[MemoryTerm]) -> Sequence[MemoryTerm]:
        """The terms of a rank with the differences in them."""
        scaled = [
            one if one.pile not in self.ratios else one._replace(bytes=ceil(one.bytes * self.ratios[one.pile]))
            for one in terms
        ]
        beside = [_term(each) for each in self.added]
        if self.unusable_bytes and rank.spec.train.allocator == self.allocator:
            beside.append(_term(Added(pile="fragmentation", moments=ALWAYS, bytes=self.unusable_bytes)))
        return (*scaled, *beside)


def _term(each: Added) -> MemoryTerm:
    return term(each.pile, each.moments, "beside the prediction", "size", _SOURCE, size=each.bytes)
