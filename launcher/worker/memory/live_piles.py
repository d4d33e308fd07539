"""Every allocation and release of tensors, in order, each with its phase, its pile and the block that made it.

The pile of a storage is guessed from its operation, then corrected as more is known: tensors that autograd saves are
activations, those of a collective are its buffers, and the caller labels what the engine keeps. The piles at a moment
are therefore final only later.
"""

import contextlib
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_iter

from launcher.estimate.memory.terms import Pile
from launcher.worker.memory.live_bytes import LiveBytes
from launcher.worker.memory.piles import GATHERED, Layers, pile_of_operation, pile_of_tensor, plain, seeing_saved
from launcher.worker.memory.recording import Allocation, Mark, Recording, by_pile

_CAST = "aten._to_copy.default"


class LivePiles(LiveBytes):  # type: ignore[no-untyped-call]  # torch types the base class only in part.
    """Tracks tensors by pile, over any number of recordings."""

    def __init__(self, *, vocabulary: frozenset[int] = frozenset(), layers: Layers | None = None) -> None:
        """Start with nothing tracked; only logits have a last dimension in ``vocabulary``."""
        super().__init__()
        self.recording = Recording()  # Events since :meth:`restart`, or since construction.
        self.layers = layers or Layers()
        self.operation = "load"
        self._vocabulary = vocabulary
        self._numbers: dict[int, int] = {}
        self._first = 0

    def restart(self) -> None:
        """Start a new recording; live tensors are its first events, before its first phase."""
        before, self.recording = self.recording, Recording()
        self.begin(0, "")
        for key, number in list(self._numbers.items()):
            self._note(key, before.allocations[number])
        self._first = len(self.recording.allocations)

    def begin(self, step: int, phase: str) -> None:
        """Begin a phase of a step (0 while loading); all later events belong to it."""
        self.recording.marks.append(Mark(event=len(self.recording.events), step=step, phase=phase))

    def label(self, pile: Pile, tensors: Iterable[object], *, only: frozenset[Pile] | None = None) -> None:
        """Assign tensors (of a DTensor the local part) to a pile, if their pile is in ``only``."""
        for tensor in tensors:
            for held in plain(tensor):
                if self._counts(held):
                    self._follow(held)
                    self._assign(pile, held.untyped_storage()._cdata, only)

    def _assign(self, pile: Pile, key: int, only: frozenset[Pile] | None) -> None:
        number = self._numbers.get(key)
        if number is not None:
            allocation = self.recording.allocations[number]
            if only is None or allocation.pile in only:
                allocation.pile = pile

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Label tensors that autograd saves as activations; those kept by selective checkpointing stay temporary."""

        def pack(tensor: Any) -> Any:
            self.label("activations", (tensor,), only=frozenset(("temporary",)))
            return tensor

        with seeing_saved(pack):
            yield

    def end_forward(self) -> None:
        """Label tensors that outlive their forward pass as activations: they were saved for the backward pass."""
        for number in list(self._numbers.values()):
            allocation = self.recording.allocations[number]
            if number >= self._first and allocation.pile == "temporary":
                allocation.pile = "activations"

    def alive(self) -> list[Allocation]:
        """The live allocations."""
        return [self.recording.allocations[number] for number in list(self._numbers.values())]

    def in_collectives(self, kept: Container[int]) -> bool:
        """True if a collective's buffer is live whose storage (``_cdata``) is not in ``kept``, those of the engine."""
        alive = [number for key, number in list(self._numbers.items()) if key not in kept]
        return any(self.recording.allocations[number].pile in ("gather_buffers", "reduce_buffers") for number in alive)

    def piles(self) -> dict[Pile, int]:
        """Live bytes by pile; they sum to :attr:`bytes`."""
        return by_pile(self.alive())

    def _operate(self, func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Track an operation; a collective's tensors are its buffers, a forward pass's weight copies gather buffers."""
        name, pile = _known(func)
        before, self.operation = self.operation, name
        try:
            result = super()._operate(func, types, args, kwargs)
        finally:
            self.operation = before
        if pile is not None:
            self.label(pile, tree_iter((args, kwargs, result)), only=frozenset(("temporary",)))
        if name == _CAST and isinstance(args[0], nn.Parameter) and self._in_a_forward_pass:
            self.label("gather_buffers", (result,))  # Autocast's copy, which the plan counts as a gather buffer.
        return result

    def _set(self, key: int, size: int, tensor: torch.Tensor | None) -> None:
        if size == self._sizes[key]:
            return
        self._drop(key)
        if size:
            self._note(key, self._allocation(size, tensor))
        super()._set(key, size, tensor)

    def _note(self, key: int, allocation: Allocation) -> None:
        self._numbers[key] = len(self.recording.allocations)
        self.recording.events.append(len(self.recording.allocations))
        self.recording.allocations.append(allocation)

    def _allocation(self, size: int, tensor: torch.Tensor | None) -> Allocation:
        operation, pile, shape = "resize_", GATHERED, None
        if tensor is not None:
            operation, pile = self.operation, pile_of_tensor(tensor, self.operation, self._vocabulary)
            shape = tuple(tensor.shape)
        if pile == "temporary" and self._recomputing:
            pile = "activations"
        return Allocation(
            bytes=size, stream=self._stream(), operation=operation, pile=pile, shape=shape, layer=self.layers.now
        )

    def _stream(self) -> int:
        return 0

    @property
    def _in_a_forward_pass(self) -> bool:
        return self.recording.phase in ("forward", "evaluation") or self._recomputing

    @property
    def _recomputing(self) -> bool:
        """True in a forward pass recomputed by the backward pass: only that runs with gradients enabled."""
        return self.recording.phase == "backward" and torch.is_grad_enabled()

    def _drop(self, key: int) -> None:
        number = self._numbers.pop(key, None)
        if number is not None:
            self.recording.events.append(-1 - number)

    def _freed(self, key: int) -> None:
        self._drop(key)
        super()._freed(key)


@cache
def _known(operation: Any) -> tuple[str, Pile | None]:
    return str(operation), pile_of_operation(str(operation))
