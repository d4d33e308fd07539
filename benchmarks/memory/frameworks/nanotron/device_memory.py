"""A GPU's memory as a training program sees it: torch's allocator, and a host that runs ahead of the GPU."""

from __future__ import annotations

from collections import deque

from launcher.estimate.memory.reserved import Block, CachingAllocator

LAUNCHES = 1024
"""Kernels and waits that a stream's queue holds before the host has to wait for the GPU (CUDA; nanotron's runs of 80
layers hold the buffers of 32)."""

BLOCK_LAUNCHES = 32
"""Launches of one block's forward pass: 28 kernels and the waits for its four collectives (``micro_batch``)."""

_GRAIN = 512  # kMinBlockSize of torch c10/cuda/CUDACachingAllocator.cpp.


class DeviceMemory:
    """Named blocks of torch's caching allocator.

    A block that NCCL's stream has read is free for others only once the GPU is through with it (``record_stream``):
    its release comes late where the host is ahead.

    Args:
        capacity: Bytes that the allocator may reserve; None is no limit.

    Attributes:
        ahead: Whether the host runs ahead of the GPU.
        exhausted: Whether the allocator has once had to give its cache back. It waits for the GPU then, and so does
            the host from there on.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.ahead = self.exhausted = False
        self._allocator = _Waiting(self, capacity)
        self._late: deque[tuple[int, int]] = deque()
        self._held: dict[int, list[Block]] = {}
        self._names = self._launched = 0

    def new(self, size: int) -> int:
        """A block of at least so many bytes, with one launch that fills it; its name."""
        self.launch()
        while self._late and self._late[0][0] <= self._launched - LAUNCHES:
            self.free(self._late.popleft()[1])
        self._names += 1
        self._held[self._names] = self._allocator.allocate(max(_GRAIN, -(-size // _GRAIN) * _GRAIN))
        return self._names

    def free(self, *names: int) -> None:
        """Give blocks back that only the stream of computation has used."""
        for name in names:
            self._allocator.release(self._held.pop(name))

    def free_late(self, *names: int) -> None:
        """Give blocks back that NCCL's stream has used as well."""
        if self.ahead and not self.exhausted:
            self._late.extend((self._launched, name) for name in names)
        else:
            self.free(*names)

    def launch(self, number: int = 1) -> None:
        """Launch kernels that allocate nothing."""
        self._launched += number

    def wait(self) -> None:
        """The host waits for the GPU."""
        while self._late:
            self.free(self._late.popleft()[1])

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache``."""
        self._allocator.release_cached()
        self.exhausted = False

    def reset_peak(self) -> None:
        """``torch.cuda.reset_peak_memory_stats``."""
        self._allocator.peak_reserved = self._allocator.reserved

    @property
    def peak_reserved(self) -> int:
        """``torch.cuda.max_memory_reserved``."""
        return self._allocator.peak_reserved


class _Waiting(CachingAllocator):
    """Waits for the GPU before it gives its cache back (``synchronize_and_free_events``)."""

    def __init__(self, memory: DeviceMemory, capacity: int | None) -> None:
        super().__init__(capacity=capacity)
        self._memory = memory

    def release_cached(self) -> None:
        """Give back every segment that is free as a whole."""
        self._release_cached()

    def _release_cached(self) -> None:
        self._memory.exhausted = True
        self._memory.wait()
        super()._release_cached()
