"""The report on a traced run: recordings replayed through a model of torch's caching allocator.

Recordings at two depths suffice: all but the allocator's overhead is linear in the number of layers.
"""

from collections.abc import Callable
from typing import NamedTuple

from launcher.base.files import JsonObject
from launcher.base.units import MIB
from launcher.estimate.memory.reserved import Block, CachingAllocator, OutOfMemory
from launcher.estimate.memory.terms import PILES
from launcher.worker.memory.recording import Candidate, Moment, Recording


def replay(recording: Recording, *, expandable: bool, capacity: int | None = None) -> CachingAllocator:
    """Replay a recording and return the allocator; OutOfMemory if the capacity does not suffice."""
    allocator, held = CachingAllocator(expandable=expandable, capacity=capacity), dict[int, list[Block]]()
    for event in recording.events:
        allocation = recording.allocations[event if event >= 0 else -1 - event]
        if event >= 0:
            held[event] = allocator.allocate(allocation.bytes, allocation.stream)
        else:
            allocator.release(held.pop(-1 - event), allocation.stream)
    return allocator


def needed(recording: Recording, *, expandable: bool) -> int:
    """The smallest capacity with which a recording does not run out of memory, to 2 MiB, by binary search."""
    free = replay(recording, expandable=expandable)
    low, high = free.peak_allocated, free.peak_reserved
    if _suffices(recording, low, expandable=expandable):
        return low
    while high - low > 2 * MIB:
        middle = (low + high) // 2
        if _suffices(recording, middle, expandable=expandable):
            high = middle
        else:
            low = middle
    return high


def _suffices(recording: Recording, capacity: int, *, expandable: bool) -> bool:
    try:
        replay(recording, expandable=expandable, capacity=capacity)
    except OutOfMemory:
        return False
    return True


_LOAD, _STEADY = 0, 2


type _Key = tuple[int, Candidate]
"""A step, and a half of a visit to a phase in it."""


class Depth:
    """A recording with its number of layers, and the peak of each part of loading and of the second step."""

    def __init__(self, layers: int, recording: Recording) -> None:
        self.layers, self.recording = layers, recording
        self.peaks: dict[_Key, Moment] = {
            (step, part): moment for step in (_LOAD, _STEADY) for part, moment in recording.candidates(step).items()
        }

    @property
    def saved(self) -> int:
        """Bytes saved by autograd when the last backward pass begins."""
        start = max(mark.event for mark in self.recording.marks if (mark.step, mark.phase) == (_STEADY, "backward"))
        return self.recording.piles(start - 1).get("activations", 0)


class Traced(NamedTuple):
    """Recordings at one depth, or at two with the deeper one last, for a run of ``layers`` layers."""

    depths: tuple[Depth, ...]
    layers: int

    def linear(self, value: Callable[[Depth], int]) -> int:
        """A value of the recordings, extrapolated to the run's own depth."""
        last = self.depths[-1]
        return round(value(last) + self.slope(value) * (self.layers - last.layers))

    def slope(self, value: Callable[[Depth], int]) -> float:
        """Bytes that one layer adds to a value; zero if only one depth was traced."""
        first, last = self.depths[0], self.depths[-1]
        return (value(last) - value(first)) / max(1, last.layers - first.layers)

    def peaks(self) -> dict[_Key, int]:
        """The peak of each part of loading and of the second step."""
        return {key: self.linear(lambda depth, key=key: depth.peaks[key].bytes) for key in self.depths[-1].peaks}  # type: ignore[misc]

    def piles(self, key: _Key) -> dict[str, int]:
        """Bytes by pile at the peak of a part; they sum to its bytes, except for rounding."""
        alive = {id(depth): depth.recording.piles(depth.peaks[key].event) for depth in self.depths}
        found = {pile: self.linear(lambda depth, pile=pile: alive[id(depth)].get(pile, 0)) for pile in PILES}  # type: ignore[misc]
        return {pile: size for pile, size in found.items() if size > 0}


def report(traced: Traced, *, expandable: bool, cuda: bool) -> JsonObject:
    """The document of a trace; only a run on ``cuda`` has a caching allocator, maybe with expandable segments."""
    peaks = traced.peaks()
    worst = max(peaks, key=lambda key: peaks[key])
    phases: dict[str, int] = {}
    for (_, part), size in peaks.items():
        phases[part.phase] = max(size, phases.get(part.phase, 0))
    needed, reserved = _losses(traced.depths[-1].recording, expandable=expandable) if cuda else (0.0, 0.0)
    return {
        "schema": 1,
        "layers": traced.layers,
        "depths": [depth.layers for depth in traced.depths],
        "static_bytes": traced.linear(lambda depth: depth.recording.resting(_STEADY)),
        "phases": phases,
        "phase": worst[1].phase,
        "allocated_bytes": peaks[worst],
        "needed_bytes": round(peaks[worst] * (1 + needed)),
        "reserved_bytes": round(peaks[worst] * (1 + reserved)),
        "piles": traced.piles(worst),
        "saved_bytes": traced.linear(lambda depth: depth.saved),
        "saved_bytes_per_layer": round(traced.slope(lambda depth: depth.saved)),
    }


def _losses(recording: Recording, *, expandable: bool) -> tuple[float, float]:
    free = replay(recording, expandable=expandable)
    least = needed(recording, expandable=expandable)
    return least / free.peak_allocated - 1, free.peak_reserved / free.peak_allocated - 1
