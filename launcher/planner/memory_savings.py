"""What saves memory at the cost of time or of nothing: activation checkpointing, the loss in pieces, the allocator.

Along each of the three the time only grows and the memory only shrinks, which the search rests on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MODES = ("none", "selective", "full")
LOSSES = ("fused", "full", "chunked")
ALLOCATORS = ("default", "expandable")

KEYS = frozenset(("checkpointing.mode", "train.loss", "train.allocator"))

type Settings = Mapping[str, Any]


class Relief(NamedTuple):
    """The relief that the layouts of a space may have, what takes least time and saves least first.

    Attributes:
        modes: Activation checkpointing.
        losses: Ways to compute the loss.
        allocators: Torch's allocators, which take the same time.
    """

    modes: Sequence[str]
    losses: Sequence[str]
    allocators: Sequence[str]

    @classmethod
    def of(cls, modes: Sequence[str], losses: Sequence[str], allocators: Sequence[str]) -> Relief:
        """Values in any order."""
        return cls(
            sorted(modes, key=MODES.index), sorted(losses, key=LOSSES.index), sorted(allocators, key=ALLOCATORS.index)
        )

    @property
    def size(self) -> int:
        """All combinations."""
        return len(self.modes) * len(self.losses) * len(self.allocators)

    @property
    def mildest(self) -> Settings:
        """That which takes least time and saves least."""
        return self.at(0, 0)[0]

    @property
    def strongest(self) -> Settings:
        """That which takes most time and saves most."""
        return self.at(-1, -1)[-1]

    def at(self, mode: int, loss: int) -> tuple[Settings, ...]:
        """The settings of one mode and one loss, by their places, for each allocator."""
        chosen = {"checkpointing.mode": self.modes[mode], "train.loss": self.losses[loss]}
        return tuple({**chosen, "train.allocator": allocator} for allocator in self.allocators)
