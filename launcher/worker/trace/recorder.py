"""Every allocation and release of fake tensors, in order, each with its phase, its stream and its pile.

:class:`LiveBytes` notices new storages by their tensors, operation by operation, and freed ones by finalizers. Here
each becomes an event. Its pile is guessed from its operation, then corrected as more is known: tensors that autograd
saves are activations, those of a collective are its buffers, and the caller labels what the engine keeps. Operations
that need a value, which fake tensors have not, get one that changes nothing, and DTensor's own trial runs are left out.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._pytree import tree_iter

from launcher.memory.terms import Pile
from launcher.worker.live_bytes import LiveBytes
from launcher.worker.trace.events import Allocation, Mark, Recording
from launcher.worker.trace.piles import GATHERED, of_collective, of_tensor

_ITEM = torch.ops.aten._local_scalar_dense.default
_WAIT = torch.ops._c10d_functional.wait_tensor.default


class Recorder(LiveBytes):  # type: ignore[no-untyped-call]  # torch types the base class only in part.
    """Follows fake CPU tensors as a rank's own, rounded up as its allocator rounds.

    Args:
        granularity: Bytes that an allocation is a multiple of; 1 for the CPU.
        vocabulary: Sizes of a last dimension that only logits have.
        stream: Tells the stream that allocates now.
    """

    def __init__(self, *, granularity: int, vocabulary: frozenset[int], stream: Callable[[], int]) -> None:
        super().__init__()
        self.recording = Recording()
        self._granularity, self._vocabulary, self._stream = granularity, vocabulary, stream
        self._numbers: dict[int, int] = {}
        self._operation = "load"
        self._result: torch.Tensor | None = None
        self._paused = False

    def begin(self, step: int, phase: str) -> None:
        """Begin a phase of a step (0 while loading), to which all events that follow belong."""
        self.recording.marks.append(Mark(event=len(self.recording.events), step=step, phase=phase))

    def label(self, pile: Pile, tensors: Iterable[object], *, only: frozenset[Pile] | None = None) -> None:
        """Assign tensors to a pile; storages not seen before are followed from now on.

        Args:
            pile: The pile that they belong to.
            tensors: DTensors stand for their local part; objects that are no tensors are passed over.
            only: Leave alone what belongs to another pile than these.
        """
        for tensor in tensors:
            held = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
            if not isinstance(held, FakeTensor) or not self._counts(held):
                continue
            self._follow(held)
            number = self._numbers.get(held.untyped_storage()._cdata)
            if number is not None:
                allocation = self.recording.allocations[number]
                if only is None or allocation.pile in only:
                    allocation.pile = pile

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Label tensors that autograd saves for the backward pass as activations."""

        def pack(tensor: Any) -> Any:
            self.label("activations", (tensor,), only=frozenset(("temporary",)))
            return tensor

        with warnings.catch_warnings(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            # What selective checkpointing keeps does not pass the hooks: it is counted, and labelled temporary.
            warnings.filterwarnings("ignore", "A saved_tensors_hooks context", FutureWarning)
            yield

    def __enter__(self) -> Self:
        self._propagate = ShardingPropagator._propagate_tensor_meta_non_cached
        ShardingPropagator._propagate_tensor_meta_non_cached = self._pausing(self._propagate)  # type: ignore[method-assign]
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        ShardingPropagator._propagate_tensor_meta_non_cached = self._propagate  # type: ignore[method-assign]
        super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Follow an operation; one that asks for a value gets a harmless one."""
        if func is _ITEM and isinstance(args[0], FakeTensor):
            return _harmless(args[0])
        if func is _WAIT:  # Its fake implementation returns a new tensor where the real one returns its argument.
            return args[0]
        before, self._operation = self._operation, str(func)
        try:
            result = super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self._operation = before
        pile = of_collective(str(func))
        if pile is not None:
            self.label(pile, tree_iter((args, kwargs, result)), only=frozenset(("temporary",)))
        return result

    def _counts(self, tensor: torch.Tensor) -> bool:
        return isinstance(tensor, FakeTensor) and tensor.device.type == "cpu" and not self._paused

    def _follow(self, tensor: torch.Tensor) -> None:
        self._result = tensor
        super()._follow(tensor)
        self._result = None

    def _set(self, key: int, size: int) -> None:
        rounded = -(-size // self._granularity) * self._granularity
        if rounded == self._sizes[key]:
            return
        self._drop(key)
        if rounded:
            self._numbers[key] = len(self.recording.allocations)
            self.recording.events.append(len(self.recording.allocations))
            self.recording.allocations.append(self._allocation(rounded))
        super()._set(key, rounded)

    def _allocation(self, size: int) -> Allocation:
        operation, pile = "resize_", GATHERED
        if self._result is not None:
            operation, pile = self._operation, of_tensor(self._result, self._operation, self._vocabulary)
        if pile == "temporary" and self._recomputing:
            pile = "activations"
        return Allocation(bytes=size, stream=self._stream(), operation=operation, pile=pile)

    @property
    def _recomputing(self) -> bool:
        """The backward pass runs without gradients of its own; what it runs with them is a forward pass again."""
        return self.recording.phase == "backward" and torch.is_grad_enabled()

    def _drop(self, key: int) -> None:
        number = self._numbers.pop(key, None)
        if number is not None:
            self.recording.events.append(-1 - number)

    def _freed(self, key: int) -> None:
        self._drop(key)
        super()._freed(key)

    def _pausing(self, propagate: Callable[..., Any]) -> Callable[..., Any]:
        """DTensor finds out shapes by running operations on fake tensors of the whole size, which hold no memory."""

        def propagated(propagator: ShardingPropagator, *args: Any, **kwargs: Any) -> Any:
            before, self._paused = self._paused, True
            try:
                return propagate(propagator, *args, **kwargs)
            finally:
                self._paused = before

        return propagated


def _harmless(tensor: torch.Tensor) -> float | int | bool:
    """One, which as a norm clips nothing away and divides by nothing that is zero; zero as an index; False."""
    if tensor.dtype.is_floating_point:
        return 1.0
    return False if tensor.dtype == torch.bool else 0
