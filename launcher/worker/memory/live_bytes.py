"""The bytes of live tensors on the CPU, tracked operation by operation.

Every storage that an operation takes or returns is counted once, from then until it is freed. Not seen: workspaces
inside one operation, gloo's buffers, and the allocator's own overhead. Among equal runs of FSDP2 over gloo some hold
one block's all-gather too many at the peak, probably because gloo's thread releases a collective's tensors late. With a
limit it also acts as an allocator with a budget: an operation whose new storages exceed it is undone, and raises the
error that torch's allocator raises on a GPU.
"""

import gc
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NoReturn, Self

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from launcher.base.units import gib


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch types this class only in part.
    """Counts live bytes while entered; a counted storage that is freed is subtracted at any time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0  # Live now.
        self.peak = 0  # The highest ``bytes`` since a caller last set it.
        self.limit: float = math.inf  # Most bytes that may be live.
        # Called for a request beyond the limit, while all else is still live.
        self.refused: Callable[[int, str], None] = lambda requested, operation: None
        # Called for an operation's error: the C library may have had no memory for it.
        self.failed: Callable[[RuntimeError, str], None] = lambda error, operation: None
        self._sizes: dict[int, int] = {}  # By ``_cdata`` of the storage.
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}  # Their callbacks report a release.
        self._granularity = 1  # Bytes; an allocation takes a multiple of it.
        self.entered = 0  # Nesting depth of ``with``; 0 while nothing is tracked.

    def follow(self, tensors: Iterable[object]) -> None:
        """Count the storages of tensors, also in lists and tuples of them; other objects are skipped."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                self._follow(tensor)
            elif isinstance(tensor, (list, tuple)):
                self.follow(tensor)

    def __enter__(self) -> Self:
        self.entered += 1
        if self.entered > 1:
            return self
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = self._resizing(self._resize)  # type: ignore[method-assign]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        self.entered -= 1
        if self.entered:
            return
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count an operation's tensors; subclasses (DTensor) first unwrap themselves into plain tensors."""
        return self._operate(func, types, args, kwargs or {})

    def _operate(self, func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run and count; subclasses extend this, since torch's wrapper of each ``__torch_dispatch__`` takes as long."""
        if types and any(map(_unwraps_itself, types)):
            return NotImplemented
        before = self.bytes
        self.follow(args)
        if kwargs:
            self.follow(kwargs.values())
        try:
            inside = _is_python_kernel(func) and FakeTensor not in types  # A trace stands for the GPU's fused kernels.
            result = self._inside(func, args, kwargs) if inside else func(*args, **kwargs)
        except RuntimeError as error:
            self.failed(error, str(func))
            raise
        self.follow((result,))
        asked = self.bytes - before
        if asked > 0 and self.bytes > self.limit:
            result = None  # Free the refused tensors before the refusal is reported.
            self._refuse(asked, str(func))
        return result

    def _inside(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Track the operations inside a kernel written in Python."""
        TorchDispatchMode.__enter__(self)  # type: ignore[no-untyped-call]
        try:
            return func.redispatch(_CPU, *args, **kwargs)
        finally:
            TorchDispatchMode.__exit__(self, None, None, None)  # type: ignore[no-untyped-call]

    def _refuse(self, requested: int, operation: str) -> NoReturn:
        free = max(0, int(self.limit) - self.bytes)
        error = torch.OutOfMemoryError(
            f"CPU out of memory. Tried to allocate {gib(requested)}. A rank may use {gib(int(self.limit))} "
            f"(train.enforce_memory), of which {gib(free)} is free and {gib(self.bytes)} is allocated."
        )
        self.refused(requested, operation)
        raise error

    def _counts(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cpu and not isinstance(tensor, FakeTensor)

    def _follow(self, tensor: torch.Tensor) -> None:
        if not self._counts(tensor):
            return
        if _has_parts(type(tensor)):
            names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
            self.follow(getattr(tensor, name) for name in names)
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, -(-storage.nbytes() // self._granularity) * self._granularity
        before = self._sizes.get(key)
        if before is None:
            self._sizes[key] = 0
            self._references[key] = weakref.ref(storage, partial(self._forget, key))
        if size != before:
            self._set(key, size, tensor)

    def _set(self, key: int, size: int, tensor: torch.Tensor | None) -> None:
        """Change the counted size of a storage: a tensor's, or one that was resized."""
        grown = size - self._sizes[key]
        self._sizes[key] = size
        self._grow(grown)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        self._set(storage._cdata, -(-storage.nbytes() // self._granularity) * self._granularity, None)

    def _grow(self, size: int) -> None:
        self.bytes += size
        if self.bytes <= self.limit:
            self.peak = max(self.peak, self.bytes)

    def _forget(self, key: int, _: object) -> None:
        del self._references[key]
        self._freed(key)

    def _freed(self, key: int) -> None:
        self.bytes -= self._sizes.pop(key)

    def _resizing(self, resize: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``resize_`` to count it: FSDP2 keeps gathered parameters' storages and resizes them to zero and back."""

        def resized(storage: torch.UntypedStorage, *size: Any) -> Any:
            before = storage.nbytes()
            result = resize(storage, *size)
            if storage._cdata in self._sizes:
                self._resized(storage)
                if self.bytes > self.limit and (asked := storage.nbytes() - before) > 0:
                    resize(storage, before)
                    self._resized(storage)
                    self._refuse(asked, "resize_")
            return result

        return resized


_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


@cache
def _is_python_kernel(func: Any) -> bool:
    """True for optimizer steps of bitsandbytes on the CPU (``backends/cpu/ops.py``)."""
    return str(func).startswith("bitsandbytes.optimizer_update_")


@cache
def _has_parts(kind: type[torch.Tensor]) -> bool:
    return hasattr(kind, "__tensor_flatten__")


@cache
def _unwraps_itself(kind: type) -> bool:
    own = getattr(kind, "__torch_dispatch__", None)
    return own is not None and own is not torch._C._disabled_torch_dispatch_impl and not issubclass(kind, FakeTensor)


def tensors_of_process() -> Iterator[torch.Tensor]:
    """Every tensor in the process that Python's garbage collector knows; frameworks keep theirs in dozens of places."""
    kinds = _kinds(torch.Tensor)
    return (thing for thing in gc.get_objects() if type(thing) in kinds and _is_defined(thing))


def _kinds(kind: type[torch.Tensor]) -> set[type[torch.Tensor]]:
    """A class and all its subclasses; looking a type up in this set is fastest for half a million objects."""
    return {kind}.union(*map(_kinds, kind.__subclasses__()))


def _is_defined(tensor: torch.Tensor) -> bool:
    try:
        return tensor.device is not None
    except RuntimeError:
        return False
