"""Memory by phase of a run: counters of the CUDA allocator, or on the CPU the bytes of live tensors.

``memory.json`` says which of the two it holds, and beside them the peak of the process's resident memory.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from launcher.job.memory import Held, MemoryRecord
from launcher.memory.moments import PHASES, Phase
from launcher.worker.live_bytes import LiveBytes

CPU_METHOD = (
    "bytes of live CPU tensors, followed operation by operation while the model is loaded, in the first two steps "
    "and in the first save; without workspaces inside one operation and buffers of the communication library"
)
CUDA_METHOD = "counters of torch.cuda's caching allocator; phases from the first two steps and the first save"


class MemoryTracker:
    """Peak memory of one rank by phase. This class measures the CPU; :class:`CudaTracker` a GPU."""

    method = CPU_METHOD

    def __init__(self, heard: Callable[[Phase], None] = lambda phase: None) -> None:
        """Begin with nothing measured; ``heard`` is told of every phase too."""
        self._heard = heard
        self._live = LiveBytes()
        self._on = False
        self.tokens: int | None = None
        self.last: MemoryRecord | None = None
        self._peaks: dict[str, int] = {}
        self._static: int | None = None

    def enter(self, phase: Phase) -> None:
        """The engine enters a phase of its step; costs next to nothing while nothing is measured."""
        self._heard(phase)
        if self._on:
            self._enter(phase)

    @contextlib.contextmanager
    def measuring(self, phase: Phase, alive: Iterable[torch.Tensor] = ()) -> Iterator[None]:
        """Measure the code inside, which begins in ``phase``; ``alive`` are the tensors that existed before."""
        self._on = True
        try:
            with self._measured(alive):
                self._enter(phase)
                yield
                self._collect()
        finally:
            self._on = False

    def enforce(self, limit: int) -> contextlib.AbstractContextManager[object]:
        """Keep this rank within its capacity, in the code inside."""
        self._live.limit = limit
        return self._live

    def tell(self, *, refused: Callable[[int, str], None], failed: Callable[[RuntimeError, str], None]) -> None:
        """Tell somebody of requests beyond the capacity, and of operations that fail (:class:`LiveBytes`)."""
        self._live.refused, self._live.failed = refused, failed

    def alive(self) -> list[Held] | None:
        """What is alive now; None where that is not followed at the moment."""
        return None

    def rest(self, alive: Iterable[torch.Tensor]) -> None:
        """End a step: the tensors alive now are those between two steps."""
        if self._on:
            self._live.follow(alive)
            self._static = self._allocated()

    def has(self, phase: Phase) -> bool:
        """True if a phase has been measured."""
        return phase in self._peaks

    def summary(self) -> dict[str, Any]:
        """This rank's entry of ``memory.json``, in bytes; None where nothing was measured."""
        return {
            "static_bytes": self._static,
            "phases": {phase: self._peaks.get(phase) for phase in PHASES},
            "peak_allocated_bytes": self._peak_allocated(),
            "peak_reserved_bytes": self._peak_reserved(),
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,  # KiB on Linux (getrusage(2)).
        }

    def _measured(self, alive: Iterable[torch.Tensor]) -> contextlib.AbstractContextManager[object]:
        self._live.enter("")
        self._live.follow(alive)
        return self._live

    def _enter(self, phase: Phase) -> None:
        self._live.enter(phase)

    def _collect(self) -> None:
        self._peaks.update(self._live.peaks)
        self._live.enter("")  # What follows, where the budget is still kept, is of no measured phase.

    def _allocated(self) -> int:
        return self._live.bytes

    def _peak_allocated(self) -> int | None:
        return max(self._peaks.values(), default=None)

    def _peak_reserved(self) -> int | None:
        return None


class CudaTracker(MemoryTracker):
    """The allocator's own counters; reading and resetting them does not wait for the GPU."""

    method = CUDA_METHOD

    def __init__(self, device: torch.device, heard: Callable[[Phase], None] = lambda phase: None) -> None:
        super().__init__(heard)
        self._device = device
        self._phase: Phase | None = None
        self._highest = self._highest_reserved = 0

    def enforce(self, limit: int) -> contextlib.AbstractContextManager[object]:
        """The allocator keeps its own part of the device within the limit, and tells its observers."""
        _, total = torch.cuda.mem_get_info(self._device)
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), self._device)
        return contextlib.nullcontext()

    def rest(self, alive: Iterable[torch.Tensor]) -> None:
        """End a step: the bytes allocated now are those between two steps."""
        if self._on:
            self._static = torch.cuda.memory_allocated(self._device)

    def _measured(self, alive: Iterable[torch.Tensor]) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def _enter(self, phase: Phase) -> None:
        self._collect()
        self._phase = phase

    def _collect(self) -> None:
        """Book the peak since the last call on the phase that was entered then."""
        peak = torch.cuda.max_memory_allocated(self._device)
        self._highest = max(self._highest, peak)
        self._highest_reserved = max(self._highest_reserved, torch.cuda.max_memory_reserved(self._device))
        if self._phase is not None:
            self._peaks[self._phase] = max(self._peaks.get(self._phase, 0), peak)
            self._phase = None
        torch.cuda.reset_peak_memory_stats(self._device)

    def _peak_allocated(self) -> int:
        return max(self._highest, torch.cuda.max_memory_allocated(self._device))

    def _peak_reserved(self) -> int:
        return max(self._highest_reserved, torch.cuda.max_memory_reserved(self._device))


def tracker(device: torch.device, heard: Callable[[Phase], None] = lambda phase: None) -> MemoryTracker:
    """The tracker for a device; ``heard`` is told of every phase that an engine enters."""
    return MemoryTracker(heard) if device.type == "cpu" else CudaTracker(device, heard)
