"""Every allocation and release of fake tensors, as :class:`LivePiles` follows real ones.

Sizes are rounded as an allocator rounds them, and each allocation has its stream. Operations that need a value, which
fake tensors have not, get one that changes nothing, and DTensor's own trial runs are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator

from launcher.worker.memory.live_piles import LivePiles

_ITEM = torch.ops.aten._local_scalar_dense.default
_WAIT = torch.ops._c10d_functional.wait_tensor.default


class Recorder(LivePiles):  # type: ignore[no-untyped-call]  # torch types the base class only in part.
    """Follows fake CPU tensors as a rank's own, rounded up as its allocator rounds.

    Args:
        granularity: Bytes that an allocation is a multiple of; 1 for the CPU.
        vocabulary: Sizes of a last dimension that only logits have.
        stream: Tells the stream that allocates now.
    """

    def __init__(self, *, granularity: int, vocabulary: frozenset[int], stream: Callable[[], int]) -> None:
        super().__init__(vocabulary=vocabulary)
        self._granularity, self._current_stream = granularity, stream
        self._paused = False

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
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _counts(self, tensor: torch.Tensor) -> bool:
        return isinstance(tensor, FakeTensor) and tensor.device.type == "cpu" and not self._paused

    def _set(self, key: int, size: int) -> None:
        super()._set(key, -(-size // self._granularity) * self._granularity)

    def _stream(self) -> int:
        return self._current_stream()

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
