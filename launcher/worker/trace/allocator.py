"""A model of torch's caching allocator, to play a recording back: bytes that it reserves, and the least it needs.

Followed: torch ``c10/cuda/CUDACachingAllocator.cpp`` and ``c10/core/AllocatorConfig.h``: a pool for small and one for
large blocks on each stream, the best fitting free block, its split, merging with free neighbours, the sizes of new
segments, expandable segments, and on failure the release of what is cached before a second try. Left out:
``record_stream``, garbage collection thresholds, and that a GPU frees behind the CPU.

The report on a run is made of recordings at two depths: all but the allocator's loss is linear in the number of layers.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from launcher.base.files import JsonObject
from launcher.base.units import MIB
from launcher.estimate.memory.terms import PILES
from launcher.worker.memory.recording import Candidate, Moment, Recording

_SMALLEST = 512  # kMinBlockSize
_SMALL = MIB  # kSmallSize: the largest block of the small pool
_SMALL_SEGMENT = 2 * MIB  # kSmallBuffer
_LARGE_SEGMENT = 20 * MIB  # kLargeBuffer
_OWN_SEGMENT = 10 * MIB  # kMinLargeAlloc: from here on a segment is made to measure
_ROUND_SEGMENT = 2 * MIB  # kRoundLarge

type _Pool = tuple[int, bool]
"""A stream, and whether it is the pool of small blocks."""


class OutOfMemory(Exception):
    """The capacity does not suffice, even with nothing cached."""


@dataclass(slots=True, eq=False)
class _Block:
    """Neighbours in the same segment are linked; a block that is the whole segment has none."""

    pool: _Pool
    bytes: int
    order: int
    free: bool = False
    before: "_Block | None" = None
    after: "_Block | None" = None

    @property
    def key(self) -> tuple[int, int]:
        return (self.bytes, self.order)


class CachingAllocator:
    """Hands out numbered blocks; ``reserved`` are all segments' or mapped pages' bytes, at most a capacity."""

    def __init__(self, *, expandable: bool = False, capacity: int | None = None) -> None:
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self._expandable, self._capacity = expandable, capacity
        self._free: dict[_Pool, list[tuple[int, int, _Block]]] = {}
        self._held: dict[int, _Block] = {}
        self._tails: dict[_Pool, _Block] = {}
        self._orders = count()

    def allocate(self, number: int, size: int, stream: int = 0) -> None:
        """Hand out a block of ``size`` bytes, a multiple of 512, from the memory of a stream."""
        pool = (stream, size <= _SMALL)
        block = self._best(pool, size) or self._grown(pool, size)
        self._split(block, size)
        block.free = False
        self._held[number] = block
        self.allocated += block.bytes
        self.peak_allocated = max(self.peak_allocated, self.allocated)

    def release(self, number: int) -> None:
        """Take a block back and merge it with free neighbours."""
        block = self._held.pop(number)
        self.allocated -= block.bytes
        for other in (block.before, block.after):
            if other is not None and other.free:
                self._forget(other)
                self._merge(block, other)
        self._offer(block)

    def _best(self, pool: _Pool, size: int) -> _Block | None:
        free = self._free.setdefault(pool, [])
        place = bisect_left(free, (size, -1))
        return free.pop(place)[2] if place < len(free) else None

    def _grown(self, pool: _Pool, size: int) -> _Block:
        """Reserve new memory; if there is none, once more after the release of all that is cached."""
        reserve = self._expanded if self._expandable else self._segment
        block = reserve(pool, size)
        if block is None:
            self._release_cached()
            block = reserve(pool, size)
        if block is None:
            raise OutOfMemory
        return block

    def _reserve(self, size: int) -> bool:
        if self._capacity is not None and self.reserved + size > self._capacity:
            return False
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return True

    def _segment(self, pool: _Pool, size: int) -> _Block | None:
        wanted = _segment_size(size)
        if not self._reserve(wanted):
            return None
        return _Block(pool=pool, bytes=wanted, order=next(self._orders))

    def _expanded(self, pool: _Pool, size: int) -> _Block | None:
        tail = self._tails.get(pool)
        usable = tail if tail is not None and tail.free else None
        page = _page(pool)
        missing = size - (usable.bytes if usable else 0)
        wanted = -(-missing // page) * page
        if not self._reserve(wanted):
            return None
        if usable is not None:
            self._forget(usable)
            usable.bytes += wanted
            return usable
        block = _Block(pool=pool, bytes=wanted, order=next(self._orders), before=tail)
        if tail is not None:
            tail.after = block
        self._tails[pool] = block
        return block

    def _split(self, block: _Block, size: int) -> None:
        """``should_split``: the rest of a large block stays with it below 1 MiB, except in expandable segments."""
        rest = block.bytes - size
        if rest < _SMALLEST or (not block.pool[1] and not self._expandable and rest <= _SMALL):
            return
        other = _Block(block.pool, rest, next(self._orders), before=block, after=block.after)
        if block.after is not None:
            block.after.before = other
        elif self._expandable:
            self._tails[block.pool] = other
        block.after, block.bytes = other, size
        self._offer(other)

    def _merge(self, block: _Block, other: _Block) -> None:
        block.bytes += other.bytes
        if other is block.after:
            block.after = other.after
            if block.after is not None:
                block.after.before = block
        else:
            block.before, block.order = other.before, other.order
            if block.before is not None:
                block.before.after = block
        if self._tails.get(block.pool) is other:
            self._tails[block.pool] = block

    def _offer(self, block: _Block) -> None:
        block.free = True
        insort(self._free.setdefault(block.pool, []), (*block.key, block))

    def _forget(self, block: _Block) -> None:
        free = self._free[block.pool]
        del free[bisect_left(free, block.key)]

    def _release_cached(self) -> None:
        """``release_cached_blocks``: whole free segments; with expandable segments the free pages."""
        for pool, free in self._free.items():
            if self._expandable:
                self._unmap(pool)
                continue
            for entry in [entry for entry in free if entry[2].before is None and entry[2].after is None]:
                free.remove(entry)
                self.reserved -= entry[0]

    def _unmap(self, pool: _Pool) -> None:
        """Give back the pages that a free block holds whole from its own start, as its place is not kept."""
        page = _page(pool)
        for entry in list(self._free[pool]):
            block = entry[2]
            whole = block.bytes // page * page
            if not whole:
                continue
            self._forget(block)
            self.reserved -= whole
            block.bytes -= whole
            if block.bytes:
                self._offer(block)
            else:
                self._unlink(block)

    def _unlink(self, block: _Block) -> None:
        if block.before is not None:
            block.before.after = block.after
        if block.after is not None:
            block.after.before = block.before
        elif block.before is not None:
            self._tails[block.pool] = block.before
        else:
            self._tails.pop(block.pool, None)


def _segment_size(size: int) -> int:
    if size <= _SMALL:
        return _SMALL_SEGMENT
    return _LARGE_SEGMENT if size < _OWN_SEGMENT else -(-size // _ROUND_SEGMENT) * _ROUND_SEGMENT


def _page(pool: _Pool) -> int:
    return _SMALL_SEGMENT if pool[1] else _LARGE_SEGMENT


def replay(recording: Recording, *, expandable: bool, capacity: int | None = None) -> CachingAllocator:
    """Play a recording back; raises :class:`OutOfMemory` where the capacity does not suffice."""
    allocator = CachingAllocator(expandable=expandable, capacity=capacity)
    for event in recording.events:
        if event >= 0:
            allocation = recording.allocations[event]
            allocator.allocate(event, allocation.bytes, allocation.stream)
        else:
            allocator.release(-1 - event)
    return allocator


def needed(recording: Recording, *, expandable: bool) -> int:
    """The least capacity with which a recording does not run out of memory, to 2 MiB, by binary search."""
    free = replay(recording, expandable=expandable)
    low, high = free.peak_allocated, free.peak_reserved
    if _suffices(recording, low, expandable=expandable):
        return low
    while high - low > _ROUND_SEGMENT:
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
"""A step, and a part of it."""


class Depth:
    """A recording with its number of layers, and the peak of each part of loading and of the second step."""

    def __init__(self, layers: int, recording: Recording) -> None:
        self.layers, self.recording = layers, recording
        self.peaks: dict[_Key, Moment] = {
            (step, part): moment for step in (_LOAD, _STEADY) for part, moment in recording.candidates(step).items()
        }

    @property
    def saved(self) -> int:
        """Bytes that autograd has saved when the last backward pass begins."""
        start = max(mark.event for mark in self.recording.marks if (mark.step, mark.phase) == (_STEADY, "backward"))
        return self.recording.piles(start - 1).get("activations", 0)


class Traced(NamedTuple):
    """One traced depth, or two with the deeper one last, for a run of ``layers`` layers."""

    depths: tuple[Depth, ...]
    layers: int

    def linear(self, value: Callable[[Depth], int]) -> int:
        """A value of the recordings at the run's own depth."""
        last = self.depths[-1]
        return round(value(last) + self.slope(value) * (self.layers - last.layers))

    def slope(self, value: Callable[[Depth], int]) -> float:
        """Bytes that one layer adds to a value; zero where one depth was traced."""
        first, last = self.depths[0], self.depths[-1]
        return (value(last) - value(first)) / max(1, last.layers - first.layers)

    def peaks(self) -> dict[_Key, int]:
        """The peak of each part of loading and of the second step."""
        return {key: self.linear(lambda depth, key=key: depth.peaks[key].bytes) for key in self.depths[-1].peaks}  # type: ignore[misc]

    def piles(self, key: _Key) -> dict[str, int]:
        """Bytes of each pile at the peak of a part; they sum to its bytes but for rounding."""
        alive = {id(depth): depth.recording.piles(depth.peaks[key].event) for depth in self.depths}
        found = {pile: self.linear(lambda depth, pile=pile: alive[id(depth)].get(pile, 0)) for pile in PILES}  # type: ignore[misc]
        return {pile: size for pile, size in found.items() if size > 0}


def report(traced: Traced, *, expandable: bool, cuda: bool) -> JsonObject:
    """The document of a trace; only a run on ``cuda`` has a caching allocator, perhaps of expandable segments."""
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
