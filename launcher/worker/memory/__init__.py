"""Memory by phase of a run: counters of the CUDA allocator, or on the CPU the bytes of live tensors.

On the CPU every tensor is tracked, so a pile is a sum over tensors. On a GPU the allocator's counters are read between
any two blocks; tensors that the engine keeps are known by identity, those that autograd saves by its hooks, and the
rest is temporary.
"""

import contextlib
import resource
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from launcher.base.files import JsonObject
from launcher.estimate.memory.moments import PHASES, Phase
from launcher.estimate.memory.terms import Pile
from launcher.job.memory import Held, MemoryRecord, PhaseMemory
from launcher.worker.memory.live_piles import LivePiles
from launcher.worker.memory.piles import Kept, Layers, SavedBytes, divided, kept_bytes, storages, with_recomputation

CPU_METHOD = (
    "bytes of live CPU tensors, tracked operation by operation while the model is loaded, in the first two steps "
    "and in the first save; without workspaces inside one operation and buffers of the communication library"
)
CUDA_METHOD = "counters of torch.cuda's caching allocator; phases from the first two steps and the first save"

type Part = Phase | Literal["evaluation"]
type Heard = Callable[[Phase], None]


@dataclass(slots=True, kw_only=True)
class Sample:
    """Memory measured since the last sample was taken."""

    phases: dict[str, PhaseMemory] = field(default_factory=dict)  # The peak of each phase.
    static: dict[str, int] | None = None  # Bytes by pile between two steps; None if no step was measured.
    reserved_bytes: int | None = None  # The peak reserved by the caching allocator; None on the CPU.


class MemoryTracker:
    """Measures one rank's peak memory by phase. This class measures the CPU; :class:`CudaTracker` a GPU."""

    method = CPU_METHOD

    def __init__(self, heard: Heard = lambda phase: None, *, vocabulary: frozenset[int] = frozenset()) -> None:
        """Start with nothing measured; ``heard`` is called with every phase; only logits are ``vocabulary`` wide."""
        self._heard = heard
        self.layers = Layers()
        self.kept: Callable[[], Iterable[Kept]] = tuple  # Returns the engine's tensors, once there is an engine.
        self.tokens: int | None = None  # Tokens of the current micro-batch.
        self.last: MemoryRecord | None = None  # This rank's newest line of ``memory.jsonl``.
        self.followed = False  # True once something was measured, which takes time; the step timer resets it.
        self.recomputes = False  # True if backward passes run blocks again.
        self._live = LivePiles(vocabulary=vocabulary, layers=self.layers)
        self.measured = self._one_phase = False  # ``measured`` is True while the current code is measured.
        self._peaks: dict[str, int] = {}
        self._static: int | None = None
        self._sample = Sample()

    def enter(self, phase: Phase) -> None:
        """Enter a phase of a step; called by the engine, almost free while nothing is measured."""
        self._heard(phase)
        self.layers.now = None
        if self.measured and not self._one_phase:
            self._enter(phase)

    @contextlib.contextmanager
    def measuring(self, phase: Part, alive: Iterable[torch.Tensor] = (), *, summary: bool = True) -> Iterator[None]:
        """Measure the code inside; tensors in ``alive`` exist already; ``forward`` begins a step."""
        self.measured = self.layers.on = self.followed = True
        self._one_phase = phase != "forward"
        try:
            with self._measured(alive):
                self._enter(phase)
                yield
                self._collect()
                if summary:
                    peaks = {name: peak.allocated_bytes for name, peak in self._sample.phases.items()}
                    self._peaks |= {name: max(self._peaks.get(name, 0), peak) for name, peak in peaks.items()}
        finally:
            self.measured = self._one_phase = self.layers.on = False
            self.layers.forget()

    def enforce(self, limit: int) -> contextlib.AbstractContextManager[object]:
        """Hold this rank to its memory limit in the code inside."""
        self._live.limit = limit
        return self._live

    def tell(self, *, refused: Callable[[int, str], None], failed: Callable[[RuntimeError, str], None]) -> None:
        """Set callbacks for requests beyond the limit and for operations that fail (:class:`LiveBytes`)."""
        self._live.refused, self._live.failed = refused, failed

    def alive(self) -> list[Held] | None:
        """Return the live allocations; None if they are not tracked at the moment."""
        if not self._live.entered:
            return None
        self._label()
        if self._live.recording.phase == "forward":
            self._live.end_forward()
        return [
            Held(bytes=each.bytes, pile=each.pile, operation=each.operation, shape=each.shape, layer=each.layer)
            for each in self._live.alive()
        ]

    def piles(self) -> dict[str, int]:
        """Live bytes by pile; empty if they are not tracked at the moment."""
        found: dict[str, int] = {}
        for each in self.alive() or ():
            found[each.pile] = found.get(each.pile, 0) + each.bytes
        return found

    def rest(self, alive: Iterable[torch.Tensor], *, summary: bool = True) -> None:
        """End a step: the tensors live now are those between steps."""
        if not self.measured:
            return
        self._live.follow(alive)
        self._label()
        self._await_collectives()
        self._sample.static = _nonzero(self._live.piles())
        if summary:
            self._static = self._live.bytes

    def label(self, pile: Pile, tensors: Iterable[torch.Tensor]) -> None:
        """Assign tensors that live only within a step to a pile; almost free while nothing is measured."""
        if self.measured:
            self._live.label(pile, tensors)

    def take(self) -> Sample:
        """Return the measurements since the last call, and reset them."""
        sample, self._sample = self._sample, Sample()
        return sample

    def peak_of_line(self) -> int | None:
        """The peak of allocated bytes since the counter was last reset; None on the CPU, which has no counter."""
        return None

    def has(self, phase: Phase) -> bool:
        """True if a phase has been measured."""
        return phase in self._peaks

    def summary(self) -> JsonObject:
        """This rank's entry in ``memory.json``, in bytes; None for what was not measured."""
        allocated, reserved = self._highest()
        return {
            "static_bytes": self._static,
            "phases": {phase: self._peaks.get(phase) for phase in PHASES},
            "peak_allocated_bytes": allocated,
            "peak_reserved_bytes": reserved,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,  # KiB on Linux (getrusage(2)).
        }

    @contextlib.contextmanager
    def _measured(self, alive: Iterable[torch.Tensor]) -> Iterator[None]:
        self._live.follow(alive)
        self._label()
        self._live.restart()
        with self._live:
            yield

    def _enter(self, phase: Part) -> None:
        if phase == "backward":
            self._live.end_forward()
        if phase == "optimizer":
            self._label()
        self._live.begin(1, phase)

    def _collect(self) -> None:
        self._label()
        recording = self._live.recording
        for phase, moment in recording.peaks(1).items():
            before = self._sample.phases.get(phase)
            if before is None or moment.bytes > before.allocated_bytes:
                piles = _nonzero(recording.piles(moment.event))
                self._sample.phases[phase] = PhaseMemory(allocated_bytes=moment.bytes, piles=piles)

    def _label(self) -> None:
        for pile, tensors in self.kept():
            self._live.label(pile, tensors)

    def _await_collectives(self) -> None:
        """Wait up to 0.25 s for gloo's threads, which free a collective's tensors late on a busy machine."""
        kept = {storage._cdata for _, tensors in self.kept() for storage in storages(tensors)}
        until = time.monotonic() + 0.25
        while self._live.in_collectives(kept) and time.monotonic() < until:
            time.sleep(0.001)

    def _highest(self) -> tuple[int | None, int | None]:
        return max(self._peaks.values(), default=None), None


class CudaTracker(MemoryTracker):
    """Measures a GPU by the allocator's own counters; reading and resetting them does not wait for the GPU."""

    method = CUDA_METHOD

    def __init__(
        self, device: torch.device, heard: Heard = lambda phase: None, *, vocabulary: frozenset[int] = frozenset()
    ) -> None:
        super().__init__(heard, vocabulary=vocabulary)
        self._device = device
        self._phase: Part | None = None
        self._allocated = self._reserved = self._allocated_of_line = self._usual = 0
        self.reserved_by_phase: dict[str, int] = {}  # The peak of reserved bytes of each phase.
        self._saved = SavedBytes(vocabulary)
        self._labelled: dict[int, tuple[Pile, weakref.ref[torch.UntypedStorage]]] = {}
        self.layers.passed = self._look

    def enforce(self, limit: int) -> contextlib.AbstractContextManager[object]:
        """Limit the allocator's part of the device; the allocator calls its observers when a request exceeds it."""
        _, total = torch.cuda.mem_get_info(self._device)
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), self._device)
        return contextlib.nullcontext()

    def piles(self) -> dict[str, int]:
        """Allocated bytes by pile; in an unmeasured step all that the engine does not keep is temporary."""
        return self._piles(torch.cuda.memory_allocated(self._device))

    def rest(self, alive: Iterable[torch.Tensor], *, summary: bool = True) -> None:
        """End a step: the bytes allocated now are those between steps."""
        if not self.measured:
            return
        allocated = torch.cuda.memory_allocated(self._device)
        self._sample.static = self._piles(allocated)
        if summary:
            self._static = allocated

    def label(self, pile: Pile, tensors: Iterable[torch.Tensor]) -> None:
        """As in :class:`MemoryTracker`; the tensors are remembered by weak references."""
        if self.measured:
            for storage in storages(tensors):
                self._labelled[storage._cdata] = (pile, weakref.ref(storage))

    @contextlib.contextmanager
    def _measured(self, alive: Iterable[torch.Tensor]) -> Iterator[None]:
        self._labelled.clear()
        self._usual = self.piles().get("temporary", 0)
        with self._saved.following(self.kept()):
            yield

    def _enter(self, phase: Part) -> None:
        self._collect()
        self._phase = phase

    def _collect(self) -> None:
        self._look()
        self._phase = None

    def _look(self) -> None:
        """Record the peak since the last look, with its piles, if it is the phase's highest."""
        peak, reserved = self._counters()
        self._allocated, self._reserved = self._highest()
        self._allocated_of_line = max(self._allocated_of_line, peak)
        if self._phase is not None:
            before = self._sample.phases.get(self._phase)
            self.reserved_by_phase[self._phase] = max(self.reserved_by_phase.get(self._phase, 0), reserved)
            self._sample.reserved_bytes = max(self._sample.reserved_bytes or 0, reserved)
            if before is None or peak > before.allocated_bytes:
                piles = self._piles(peak)
                if self._phase == "backward" and self.recomputes:
                    piles = with_recomputation(piles, self._usual)
                self._sample.phases[self._phase] = PhaseMemory(allocated_bytes=peak, piles=piles)
        self._saved.forget_peak()
        torch.cuda.reset_peak_memory_stats(self._device)

    def _piles(self, allocated: int) -> dict[str, int]:
        """Allocated bytes by pile: kept by the engine, saved by autograd since the last look, and the rest."""
        kept: list[tuple[Pile, Iterable[torch.UntypedStorage]]] = []
        for pile, reference in self._labelled.values():
            if (storage := reference()) is not None:
                kept.append((pile, [storage]))
        kept += [(pile, storages(tensors)) for pile, tensors in self.kept()]
        return divided(allocated, dict(Counter(kept_bytes(kept, self._device)) + Counter(self._saved.peak)))

    def peak_of_line(self) -> int:
        """The peak since the last call, or longer: the allocator's counter is reset only in measured steps."""
        peak, self._allocated_of_line = max(self._allocated_of_line, self._counters()[0]), 0
        return peak

    def _highest(self) -> tuple[int, int]:
        peak, reserved = self._counters()
        return max(self._allocated, peak), max(self._reserved, reserved)

    def _counters(self) -> tuple[int, int]:
        return torch.cuda.max_memory_allocated(self._device), torch.cuda.max_memory_reserved(self._device)


def _nonzero(piles: dict[Any, int]) -> dict[str, int]:
    return {str(pile): size for pile, size in piles.items() if size}


def tracker(
    device: torch.device, heard: Heard = lambda phase: None, vocabulary: frozenset[int] = frozenset()
) -> MemoryTracker:
    """Make the tracker for a device."""
    if device.type == "cpu":
        return MemoryTracker(heard, vocabulary=vocabulary)
    return CudaTracker(device, heard, vocabulary=vocabulary)
