"""One row of a memory estimate: bytes of one pile, alive at these moments, by this formula, from this source."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from launcher.memory.moments import MOMENTS, Moment, Phase

type Pile = Literal[
    "parameters",
    "gradients",
    "optimizer_states",
    "master_weights",
    "activations",
    "logits",
    "gather_buffers",
    "reduce_buffers",
    "temporary",
    "workspace",
    "context",
    "communicators",
    "fragmentation",
]

PILES: tuple[Pile, ...] = get_args(Pile.__value__)

OUTSIDE_PILES: frozenset[Pile] = frozenset(("context", "communicators"))
"""What the process holds on the device outside of the caching allocator."""


class MemoryTerm(NamedTuple):
    """Bytes of one pile on one rank; a tuple, since an estimate makes dozens of them.

    Attributes:
        pile: The pile of the report (docs/contract.md) that it is added to.
        moments: When it is alive.
        bytes: Never negative.
        formula: How the bytes were computed, as text.
        source: Where the formula stands: a paper's equation, a file of the framework, a trace.
    """

    pile: Pile
    moments: frozenset[Moment]
    bytes: int
    formula: str
    source: str

    @property
    def phases(self) -> frozenset[Phase]:
        """The phases in which it is alive at one moment at least."""
        return frozenset(MOMENTS[moment] for moment in self.moments)
