"""The bytes that autograd has saved for a backward pass, without following any operation.

Hooks of saved tensors tell of each; weak references to their storages tell when they are gone. Parameters, which
autograd saves as well, and all else that the engine keeps are no activations.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator

import torch

from launcher.worker.piles import Kept, plain, storages


class SavedBytes:
    """Bytes of saved storages, each counted once.

    Args:
        vocabulary: Sizes of a last dimension that only logits have.

    Attributes:
        now: Saved and alive, by pile.
        peak: ``now`` where its sum was highest since :meth:`forget_peak`.
    """

    def __init__(self, vocabulary: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._kept: frozenset[int] = frozenset()
        self._sizes: dict[int, tuple[str, int]] = {}
        self.now: Counter[str] = Counter()
        self.peak: dict[str, int] = {}

    @contextlib.contextmanager
    def following(self, kept: Iterable[Kept]) -> Iterator[None]:
        """Count what is saved from here on, but for what the engine keeps."""
        self._kept = frozenset(storage._cdata for _, tensors in kept for storage in storages(tensors))
        with torch.autograd.graph.saved_tensors_hooks(self._packed, lambda tensor: tensor):
            yield

    def forget_peak(self) -> None:
        """Look for the highest sum anew."""
        self.peak = dict(self.now)

    def _packed(self, tensor: torch.Tensor) -> torch.Tensor:
        for held in plain(tensor):
            storage = held.untyped_storage()
            key = storage._cdata
            if key not in self._kept and key not in self._sizes and held.device.type != "meta":
                logits = held.dim() >= 2 and held.shape[-1] in self._vocabulary and held.is_floating_point()
                pile = "logits" if logits else "activations"
                self._sizes[key] = (pile, storage.nbytes())
                self.now[pile] += storage.nbytes()
                weakref.finalize(storage, self._freed, key).atexit = False
                if self.now.total() > sum(self.peak.values()):
                    self.peak = dict(self.now)
        # An output that its own node held would never be freed; a parameter's values may be elsewhere by the time.
        return tensor if tensor.is_leaf else tensor.detach()

    def _freed(self, key: int) -> None:
        pile, size = self._sizes.pop(key)
        self.now[pile] -= size
