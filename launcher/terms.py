"""One row of a memory estimate: so many bytes of one pile, alive in these phases, by this formula, from this source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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

PHASES: tuple[Phase, ...] = ("load", "forward", "backward", "optimizer", "checkpoint_save")
