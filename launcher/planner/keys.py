"""The keys that a layout sets, and those among them that save memory at the cost of time, or of nothing.

The search relies on their order: from value to value of activation checkpointing, the chunked loss and the allocator,
time only grows and memory only shrinks.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

SEARCHED = (
    "parallel.tensor", "parallel.sequence", "parallel.pipeline", "parallel.virtual_pipeline",
    "parallel.first_stage_layers", "parallel.last_stage_layers", "parallel.schedule", "parallel.context",
    "parallel.ulysses", "parallel.expert", "parallel.expert_tensor", "parallel.replicate", "zero.stage", "zero.hpz",
    "zero.offload_optimizer", "zero.offload_parameters", "backend.reshard_after_forward", "train.micro_batch_size",
    "checkpointing.mode", "train.loss", "train.allocator", "backend.extra",
)  # fmt: skip
"""The keys that a layout sets."""

MODES = ("none", "selective", "full")
LOSSES = ("fused", "full", "chunked")
ALLOCATORS = ("default", "expandable")
VARIED = ("precision", "optimizer", "adapter")
"""Groups whose options are searched on request, because each option changes the training."""

SAVING_KEYS = frozenset(("checkpointing.mode", "train.loss", "train.allocator"))

type Settings = Mapping[str, Any]


class MemorySavings(NamedTuple):
    """The memory savings available in a space, in each list the fastest and least effective first."""

    modes: Sequence[str]  # Activation checkpointing.
    losses: Sequence[str]  # Ways to compute the loss.
    allocators: Sequence[str]  # Torch's allocators, which take the same time.

    @property
    def size(self) -> int:
        """The number of combinations."""
        return len(self.modes) * len(self.losses) * len(self.allocators)

    @property
    def places(self) -> list[tuple[int, int]]:
        """The index pairs of every mode with every loss, as :meth:`at` takes them."""
        return list(itertools.product(range(len(self.modes)), range(len(self.losses))))

    def at(self, mode: int, loss: int) -> tuple[Settings, ...]:
        """The settings of one mode and one loss, given by index, with each allocator."""
        chosen = {"checkpointing.mode": self.modes[mode], "train.loss": self.losses[loss]}
        return tuple({**chosen, "train.allocator": allocator} for allocator in self.allocators)
