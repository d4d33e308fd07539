"""A simulation of torch's caching allocator: the bytes that it reserves for a rank's terms, moment by moment.

A block is cut from the smallest free block that holds it, or else from a new segment, which other streams and larger
blocks cannot use. So what is reserved beyond what is allocated follows from the sizes of blocks and their order. The
terms say which bytes are alive when; each is cut by its pile into the sizes of the rank's weights, saved tensors and
logits. At each moment, blocks that end are released before new ones are allocated: first those that outlive the step,
such as the workspaces of the first product, then the largest. Left out are blocks below 1 MiB and those that come and
go between two moments. No number is fitted, but this order, and the extra moment halfway through the backward pass,
were chosen among others by the runs of ``benchmarks/results/gpu.json``.

Modelled after torch ``c10/cuda/CUDACachingAllocator.cpp`` and ``c10/core/AllocatorConfig.h``: pools of small
and of large blocks per stream, the best-fitting free block, splitting, merging with free neighbours, the sizes of new
segments, expandable segments, and on failure the release of cached segments before a second try. Left out:
``record_stream``, garbage collection thresholds, and that a GPU frees later than the CPU.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import repeat
from math import ceil
from operator import itemgetter
from types import MappingProxyType

from launcher.base.formula import Value
from launcher.base.units import MIB
from launcher.estimate.memory.activations import kept_per_token
from launcher.estimate.memory.moments import MOMENTS, PASSES, Moment
from launcher.estimate.memory.terms import OUTSIDE_PILES, MemoryTerm
from launcher.estimate.rank.model import RankModel

_SMALLEST = 512  # kMinBlockSize
_SMALL = MIB  # kSmallSize: the largest block of the small pool
_SMALL_SEGMENT = 2 * MIB  # kSmallBuffer
_LARGE_SEGMENT = 20 * MIB  # kLargeBuffer
_OWN_SEGMENT = 10 * MIB  # kMinLargeAlloc: blocks of this size and more get a segment of their own size
_ROUND_SEGMENT = 2 * MIB  # kRoundLarge
_MOST = 500  # Most blocks of a term that are simulated one by one; more are joined into larger ones, to save time.
_STATES = "optimizer_states"
_AHEAD = "all_gather_copy_in_stream"  # A stream of torch ``distributed/fsdp/_fully_shard/_fsdp_collectives.py``.
_SIZE, _PLACE = itemgetter(0), itemgetter(0, 1)
_STEP: tuple[Moment, ...] = tuple(moment for moment in MOMENTS if moment not in ("load", "checkpoint_save"))

type _Pool = tuple[int | str, bool]
"""A stream, and whether this is its pool of small blocks."""
type Block = tuple[int, int]
"""The bytes and the address of a block."""
type _Kind = tuple[str, str, int]
"""Equal blocks: their pile, their stream, the bytes of one."""
type _Blocks = Mapping[_Kind, int]


class OutOfMemory(Exception):
    """The capacity does not suffice, even after everything cached was released."""


class CachingAllocator:
    """A model of torch's allocator; ``reserved`` are the bytes of all segments or mapped pages, at most a capacity."""

    def __init__(self, *, expandable: bool = False, capacity: int | None = None) -> None:
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self._expandable, self._capacity = expandable, capacity
        self._free: dict[_Pool, list[Block]] = {}  # Sorted.
        self._sizes: dict[int, int] = {}  # Bytes of the free blocks that are a part of their segment, by address.
        self._starts: dict[int, int] = {}  # Addresses of these, by their end.
        self._segments: dict[int, int] = {}  # Bytes of segments, by address.
        self._ends: dict[_Pool, int] = {}  # End of the memory that expandable segments have mapped.
        self._next = 0  # The address of the next segment, after a gap.

    def allocate(self, size: int, stream: int | str = 0, count: int = 1) -> list[Block]:
        """Allocate ``count`` blocks of ``size`` bytes, a multiple of 512, from the memory of a stream."""
        pool, handed = (stream, size <= _SMALL), list[Block]()
        least = _SMALLEST if pool[1] or self._expandable else _SMALL + 1  # ``should_split``
        while left := count - len(handed):
            chosen = self._fitting(pool, size, left) or self._grown(pool, size, left)
            handed += chosen if chosen[0][0] - size < least else self._cut(pool, size, left, chosen, least)
        self.allocated += sum(map(_SIZE, handed))
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return handed

    def release(self, blocks: Sequence[Block], stream: int | str = 0) -> None:
        """Free equal blocks of a stream and merge them with their free neighbours."""
        self.allocated -= sum(map(_SIZE, blocks))
        free, segments = self._free[stream, blocks[0][0] <= _SMALL], self._segments
        if parts := [block for block in blocks if segments.get(block[1]) != block[0]]:
            merged, joined = self._merged(parts)
            _take(free, merged)
            _put(free, joined)
        if len(parts) < len(blocks):
            _put(free, [block for block in blocks if segments.get(block[1]) == block[0]] if parts else blocks)

    def _merged(self, parts: Iterable[Block]) -> tuple[Collection[Block], Collection[Block]]:
        """The free neighbours that merge with ``parts`` of segments, and the merged blocks that replace both."""
        sizes, starts, merged, joined = self._sizes, self._starts, set[Block](), set[Block]()
        for size, start in parts:
            first, end = starts.pop(start, start), start + size
            if first < start:
                merged.add((sizes.pop(first), first))
            if more := sizes.pop(end, 0):
                merged.add((more, end))
                end += more
                del starts[end]
            size = end - first
            joined.add((size, first))
            if self._segments.get(first) != size:
                sizes[first], starts[end] = size, first
        return merged - joined, joined - merged

    def _cut(self, pool: _Pool, size: int, count: int, chosen: Sequence[Block], least: int) -> list[Block]:
        """Cut ``count`` blocks from chosen ones; rests of ``least`` bytes or more are free, less joins the last one."""
        cut, rests, sizes, starts = list[Block](), set[Block](), self._sizes, self._starts
        for found, start in chosen:
            here = min(count - len(cut), found // size)
            end, rest = start + here * size, found - here * size
            cut += zip(repeat(size), range(start, end, size))
            if rest >= least:
                rests.add((rest, end))
                sizes[end], starts[end + rest] = rest, end
            elif rest:
                cut[-1] = (size + rest, end - size)
        _put(self._free[pool], rests)
        return cut

    def _fitting(self, pool: _Pool, size: int, count: int) -> list[Block]:
        """Take the best-fitting free blocks, all of one size and no more of them than ``count`` blocks need."""
        free = self._free.setdefault(pool, [])
        place = bisect_left(free, (size, -1))
        if place == len(free):
            return []
        found = free[place][0]
        chosen = free[place : min(bisect_left(free, (found + 1, -1)), place - count // -(found // size))]
        del free[place : place + len(chosen)]
        for _, start in chosen:
            if self._sizes.pop(start, 0):
                del self._starts[start + found]
        return chosen

    def _grown(self, pool: _Pool, size: int, count: int) -> list[Block]:
        """Reserve new memory; on failure, release everything cached and try once more."""
        reserve = self._expanded if self._expandable else self._new_segments
        found = reserve(pool, size, count)
        if not found:
            self._release_cached()
            found = reserve(pool, size, count)
        if not found:
            raise OutOfMemory
        return found

    def _reserve(self, size: int, count: int = 1) -> int:
        """Reserve ``size`` bytes ``count`` times, or as often as the capacity allows; return how often."""
        if self._capacity is not None:
            count = min(count, (self._capacity - self.reserved) // size)
        self.reserved += size * count
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return count

    def _new_segments(self, _pool: _Pool, size: int, count: int) -> list[Block]:
        wanted, first = _segment_size(size), self._next
        self._next += self._reserve(wanted, -(count // -(wanted // size))) * (wanted + 1)
        starts = range(first, self._next, wanted + 1)
        self._segments.update(dict.fromkeys(starts, wanted))
        return [(wanted, start) for start in starts]

    def _expanded(self, pool: _Pool, size: int, count: int) -> list[Block]:
        end = self._ends.setdefault(pool, len(self._ends) << 50)
        start = self._starts.get(end, end)
        wanted = -(-(size * count - (end - start)) // _page(pool)) * _page(pool)
        if not self._reserve(wanted):
            return []
        if start < end:
            _take(self._free[pool], {(self._sizes.pop(start), self._starts.pop(end))})
        self._ends[pool] = end + wanted
        return [(end + wanted - start, start)]

    def _release_cached(self) -> None:
        """Release free segments as ``release_cached_blocks`` does, of expandable ones the pages of a free block."""
        for pool, free in self._free.items():
            for size, start in [*free]:
                gone = size // _page(pool) * _page(pool) if self._expandable else self._segments.get(start)
                if gone and gone <= size:
                    _take(free, {(size, start)})
                    self.reserved -= gone
                    if size > gone:
                        _put(free, {(size - gone, start + gone)})
                        self._sizes[start + gone], self._starts[start + size] = size - gone, start + gone
                    if self._sizes.pop(start, 0) and size == gone:
                        del self._starts[start + size]


def _take(free: list[Block], blocks: Collection[Block]) -> None:
    """Remove blocks from a sorted list."""
    if blocks:
        less = sorted(blocks)
        place, end = bisect_left(free, less[0]), bisect_right(free, less[-1])
        free[place:end] = [block for block in free[place:end] if block not in blocks]


def _put(free: list[Block], blocks: Collection[Block]) -> None:
    """Insert blocks into a sorted list."""
    if blocks:
        more = sorted(blocks)
        place, end = bisect_left(free, more[0]), bisect_left(free, more[-1])
        free[place:end] = sorted(free[place:end] + more) if place < end else more


def _segment_size(size: int) -> int:
    if size <= _SMALL:
        return _SMALL_SEGMENT
    return _LARGE_SEGMENT if size < _OWN_SEGMENT else -(-size // _ROUND_SEGMENT) * _ROUND_SEGMENT


def _page(pool: _Pool) -> int:
    return _SMALL_SEGMENT if pool[1] else _LARGE_SEGMENT


def reserved(rank: RankModel, terms: Sequence[MemoryTerm]) -> int:
    """``torch.cuda.max_memory_reserved`` after two steps, from the terms of each moment's fullest instant."""
    alive = tuple((moment, tuple(blocks.items())) for moment, blocks in _live_blocks(rank, terms).items())
    return _simulate(alive, expandable=rank.spec.train.allocator == "expandable")


@lru_cache(maxsize=128)
def _simulate(moments: tuple[tuple[Moment, tuple[tuple[_Kind, int], ...]], ...], *, expandable: bool) -> int:
    """The same, from the blocks of each moment; cached, since many points of a sweep share them, such as replicas."""
    alive = {moment: dict(blocks) for moment, blocks in moments}
    allocator = CachingAllocator(expandable=expandable)
    held = defaultdict[_Kind, list[Block]](list)
    now: _Blocks = {}
    stays = alive["idle"]
    for blocks in _order(alive):
        for kind, count in now.items():
            after = blocks.get(kind, 0)
            if after < count:
                allocator.release(held[kind][after:], kind[1])
                del held[kind][after:]
        begun = [(kind not in stays, -kind[2], kind) for kind, count in blocks.items() if count > now.get(kind, 0)]
        for _, _, kind in sorted(begun, key=_PLACE):
            held[kind] += allocator.allocate(kind[2], kind[1], blocks[kind] - len(held[kind]))
        now = blocks
    return allocator.peak_reserved


def _live_blocks(rank: RankModel, terms: Sequence[MemoryTerm]) -> dict[Moment, dict[_Kind, int]]:
    """The live blocks of each moment; a step's first two all-gathers come before anything is saved."""
    cutter = _Cutter(rank)
    alive: dict[Moment, dict[_Kind, int]] = {moment: defaultdict(int) for moment in MOMENTS}
    for term in terms:
        if term.pile not in OUTSIDE_PILES and term.bytes >= MIB:
            blocks = [*cutter.blocks(term)]
            for moment in term.moments:
                here = alive[moment]
                for kind, count in blocks:
                    here[kind] += count
            if "forward" in term.moments and cutter.gathers(term):
                for size in filter(None, cutter.gathered):  # A middle stage has no root.
                    alive["load"][term.pile, _AHEAD, size] += 1
    return alive


def _order(alive: Mapping[Moment, _Blocks]) -> Iterator[_Blocks]:
    """The live blocks at each moment of loading and two steps; the first step ends with new optimizer states."""
    now, stepped = alive["load"], False
    yield now
    for moment in (*_STEP, *_STEP):
        stepped = stepped or moment == "step"
        after = alive[moment]
        if not stepped:
            after = {kind: count for kind, count in after.items() if kind[0] != _STATES}
        if moment == "second_layer_backward":
            yield {kind: -(-(now.get(kind, 0) + after.get(kind, 0)) // 2) for kind in {**now, **after}}
        yield after
        now = after


class _Cutter:
    """Cuts terms into blocks, by their pile alone."""

    def __init__(self, rank: RankModel) -> None:
        self._rank, engine = rank, rank.engine
        states = ("parameters", "gradients", "master_weights", "optimizer_states")
        sizes = (rank.dtypes.size(of) or 4 for of in ("parameters", "accumulate", "master", "optimizer_states"))
        self._items = {
            "gather_buffers": engine.size,
            "reduce_buffers": engine.size,
            **dict(zip(states, sizes, strict=True)),
        }
        self._share = Fraction(rank.elements.parameters, rank.elements.whole or 1)
        self._root = sorted(part.largest for part in (rank.embedding, rank.head) if part.largest)
        both = (rank.root, rank.largest_block)
        self._reduced = [int(self._items["gradients"] * part.gradients) for part in both]
        self.gathered = [ceil(engine.size * rank.compute_parameters(part)) for part in both]
        self._rows, self._stays, self._block = list[int](), list[int](), list[int]()
        if rank.blocks:
            kind = rank.last_block
            self._rows = [ceil(rank.token_bytes([row]) * rank.tokens) for row in kind.saved]
            kept = ceil(kept_per_token(rank, kind) * rank.tokens)
            # Where all blocks are alike and checkpointed: one tensor per block.
            self._stays = [kept] if len(rank.blocks) == 1 and 0 < kept < sum(self._rows) else self._rows
            most = kind.elements.largest
            self._block = [size for size in kind.elements.matrices if 8 * size > most] or [most]

    def blocks(self, term: MemoryTerm) -> Iterator[tuple[_Kind, int]]:
        """The blocks of a term, each kind with its count."""
        pile, size = term.pile, term.bytes
        stream = pile if pile in self._rank.engine.own_streams else ""
        if self.gathers(term):  # One block of what FSDP2 gathers is the all-gather's output.
            root, block = self.gathered
            ahead = max(0, min(block, size - root))
            yield (pile, _AHEAD, ahead), int(ahead > 0)
            size -= ahead
        for one, count in self._sizes(term, size).items():
            if one >= MIB and count:
                yield (pile, stream, -(-one // 512) * 512), count

    def gathers(self, term: MemoryTerm) -> bool:
        """True if a term counts weights that FSDP gathers module by module."""
        rank = self._rank
        return term.pile == "gather_buffers" and rank.view.states.parameters < 1 and not rank.engine.flat_states

    def _sizes(self, term: MemoryTerm, size: int) -> Mapping[int, int]:
        pile, rank = term.pile, self._rank
        z = self._items.get(pile, 4)
        if pile == "logits":
            entries = ceil(rank.vocabulary * (rank.view.tensor if rank.engine.vocabulary_parallel else 1))
            tokens = rank.tokens if rank.spec.train.loss == "full" else min(rank.tokens, rank.spec.train.loss_chunk)
            return _filled(size, [4 * entries * tokens])
        if pile in ("activations", "temporary") and term.instant and term.moments <= PASSES:  # Tensors of one block.
            return _filled(size, self._rows)
        if pile == "activations":
            return _filled(size, self._stays)
        if pile == "workspace":
            return {size // 2: 2}  # One per thread.
        if pile == "gradients" and rank.engine.shard_rows:  # The shards are views of a reduction's output.
            root, block = self._reduced
            whole = size >= int(z * rank.elements.gradients)
            return _filled(size - root * whole, [block], {root: 1} if whole else {})
        if rank.engine.flat_states and (pile not in ("gather_buffers", "gradients") or "load" in term.moments):
            return _filled(size, [z * rank.elements.optimizer] if pile == "optimizer_states" else [])
        if pile == "reduce_buffers":  # The gradient of the output projection, and the input of a reduction.
            head = 0 if term.instant else min(size, z * rank.head.largest)
            return _filled(size - head, [], self._weights(head, z))
        return self._weights(size, z if pile == "gather_buffers" else z * self._share)

    def _weights(self, size: int, z: Value) -> Mapping[int, int]:
        """Cut bytes of weights: embedding and head once per copy of the model, then the matrices of its blocks."""
        times = max(1, int(size // (z * self._rank.elements.whole or 1)))
        found: dict[int, int] = {}
        for each in (_whole(z, weight) or 1 for weight in self._root):
            number = min(times, size // each)
            found[each] = found.get(each, 0) + number
            size -= number * each
        return _filled(size, [_whole(z, weight) for weight in self._block], found)


def _whole(z: Value, weight: int) -> int:
    """Whole bytes of a weight, in integer arithmetic for speed: each term is cut by every weight of a block."""
    return z.numerator * weight // z.denominator


def _filled(size: int, sizes: Iterable[int], beside: Mapping[int, int] = MappingProxyType({})) -> Mapping[int, int]:
    """Cut ``size`` bytes into blocks of these sizes in turn, or into larger ones where they would exceed ``_MOST``.

    Returns the count of each size, those ``beside`` included.
    """
    usable, found, rest = sorted((each for each in sizes if each >= MIB), reverse=True), dict(beside), size
    if usable:
        joined = size // sum(usable) * len(usable) // _MOST + 1
        turns, rest = divmod(size, joined * sum(usable))
        for each in usable:
            number, rest = divmod(rest, joined * each)
            found[joined * each] = found.get(joined * each, 0) + turns + number
    found[rest] = found.get(rest, 0) + 1
    return found
