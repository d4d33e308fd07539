"""One row of a memory estimate: bytes of one pile, alive at these moments, by this formula, from this source."""

from __future__ import annotations

from typing import Literal

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
