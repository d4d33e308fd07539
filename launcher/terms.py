"""One row of a memory estimate: bytes of one pile, alive at these moments, by this formula, from this source."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

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
type Phase = Literal["load", "forward", "backward", "optimizer", "checkpoint_save"]
type Moment = Literal[
    "load",
    "forward",
    "output",
    "loss",
    "loss_backward",
    "block_backward",
    "next_block_backward",
    "second_layer_backward",
    "first_layer_backward",
    "root_backward",
    "clip",
    "step",
    "idle",
    "checkpoint_save",
]

PHASES: tuple[Phase, ...] = ("load", "forward", "backward", "optimizer", "checkpoint_save")

PILES: tuple[Pile, ...] = get_args(Pile.__value__)

OUTSIDE_PILES: frozenset[Pile] = frozenset(("context", "communicators"))
"""What the process holds on the device outside of the caching allocator."""

MOMENTS: dict[Moment, Phase] = {
    "load": "load",
    "forward": "forward",
    "output": "forward",
    "loss": "forward",
    "loss_backward": "backward",
    "block_backward": "backward",
    "next_block_backward": "backward",
    "second_layer_backward": "backward",
    "first_layer_backward": "backward",
    "root_backward": "backward",
    "clip": "optimizer",
    "step": "optimizer",
    "idle": "optimizer",
    "checkpoint_save": "checkpoint_save",
}
"""The candidates for the peak and the phase that each belongs to.

``forward``: the last block of the last micro-batch in flight. ``output``: the logits,
while the weights that made them are still gathered. ``loss``: the logits and their cross entropy.
``loss_backward``: the gradient of the logits, before any block's. ``block_backward``: the backward pass of the block
that runs first, the stage's last, while all activations are still held. ``next_block_backward``: the one before it,
while the gradients of the last are being reduced. ``second_layer_backward``: the
stage's second block, the last one beside which another is gathered ahead. ``first_layer_backward``: its first block,
whose backward pass is the last, beside the gradients of all others.
``root_backward``: the end of the backward pass, when all gradients exist. ``idle``: between two steps.
"""

ALWAYS: frozenset[Moment] = frozenset(MOMENTS)


class MemoryTerm(NamedTuple):
    """Bytes of one pile on one rank; a tuple, since an estimate makes dozens of them.

    Attributes:
        pile: The pile that CONTRACT.md's report adds it to.
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


def bytes_at(terms: Iterable[MemoryTerm], moment: Moment) -> int:
    """The sum of all terms that are alive at one moment."""
    return sum(term.bytes for term in terms if moment in term.moments)
