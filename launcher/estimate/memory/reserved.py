"""A model of torch's caching allocator, and what it reserves of a rank's terms, played moment by moment.

A block is cut from the smallest free one that holds it, and where there is none from a new segment, which no other
stream can use and no larger block. So what is reserved beyond what is allocated follows from the sizes of blocks and
their order. The terms say which bytes are alive when; each is cut by its pile into the sizes of the rank's weights,
saved tensors and logits. At each moment what ends is given back before what begins is taken: first what stays, the
workspaces of the first product, then the largest. Left out are blocks below 1 MiB and what comes and goes between two
moments. No number is fitted, but this order, and the half of the way back, were chosen among others by the runs of
``benchmarks/results/gpu.json``.

Followed: torch ``c10/cuda/CUDACachingAllocator.cpp`` and ``c10/core/AllocatorConfig.h``: a pool for small and one for
large blocks on each stream, the best fitting free block, its split, merging with free neighbours, the sizes of new
segments, expandable segments, and on failure the release of what is cached before a second try. Left out:
``record_stream``, garbage collection thresholds, and that a GPU frees behind the CPU.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil

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
_OWN_SEGMENT = 10 * MIB  # kMinLargeAlloc: from here on a segment is made to measure
_ROUND_SEGMENT = 2 * MIB  # kRoundLarge
_MOST = 500  # Blocks of a term that are followed one by one.
_MOMENTS = "optimizer_states"
_AHEAD = "all_gather_copy_in_stream"  # Of torch ``distributed/fsdp/_fully_shard/_fsdp_collectives.py``.
_STEP: tuple[Moment, ...] = tuple(moment for moment in MOMENTS if moment not in ("load", "checkpoint_save"))

type _Pool = tuple[int | str, bool]
"""A stream, and whether it is the pool of small blocks."""
type _Kind = tuple[str, str, int]
"""Equal blocks: their pile, their stream, the bytes of one."""
type _Blocks = Mapping[_Kind, int]


class OutOfMemory(Exception):
    """The capacity does not suffice, even with nothing cached."""


class CachingAllocator:
    """Hands out numbered blocks; ``reserved`` are all segments' or mapped pages' bytes, at most a capacity."""

    def __init__(self, *, expandable: bool = False, capacity: int | None = None) -> None:
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self._expandable, self._capacity = expandable, capacity
        self._held: dict[int, tuple[_Pool, int, int]] = {}  # By number: the pool, the address and the bytes.
        self._free: dict[_Pool, list[tuple[int, int]]] = {}  # Bytes and addresses, in order.
        self._sizes: dict[int, int] = {}  # Bytes of free blocks, by their address.
        self._starts: dict[int, int] = {}  # Addresses of free blocks, by their end.
        self._segments: dict[int, int] = {}  # Bytes of segments, by their address.
        self._ends: dict[_Pool, int] = {}  # Of the memory that expandable segments have mapped.
        self._next = 0  # The address of the next segment, with a gap before it.

    def allocate(self, number: int, size: int, stream: int | str = 0) -> None:
        """Hand out a block of ``size`` bytes, a multiple of 512, from the memory of a stream."""
        pool = (stream, size <= _SMALL)
        free = self._free.setdefault(pool, [])
        place = bisect_left(free, (size, -1))
        if place < len(free):
            found, start = free.pop(place)
            del self._sizes[start], self._starts[start + found]
        else:
            start, found = self._grown(pool, size)
        rest = found - size
        if rest >= _SMALLEST and (rest > _SMALL or pool[1] or self._expandable):  # ``should_split``
            self._offer(pool, start + size, rest)
            found = size
        self._held[number] = (pool, start, found)
        self.allocated += found
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated

    def release(self, number: int) -> None:
        """Take a block back and merge it with free neighbours."""
        pool, start, size = self._held.pop(number)
        self.allocated -= size
        if start in self._starts:
            start, before = self._taken(pool, self._starts[start])
            size += before
        if start + size in self._sizes:
            size += self._taken(pool, start + size)[1]
        self._offer(pool, start, size)

    def _offer(self, pool: _Pool, start: int, size: int) -> None:
        insort(self._free[pool], (size, start))
        self._sizes[start], self._starts[start + size] = size, start

    def _taken(self, pool: _Pool, start: int) -> tuple[int, int]:
        size, free = self._sizes.pop(start), self._free[pool]
        del self._starts[start + size], free[bisect_left(free, (size, start))]
        return start, size

    def _grown(self, pool: _Pool, size: int) -> tuple[int, int]:
        """Reserve new memory; if there is none, once more after the release of all that is cached."""
        reserve = self._expanded if self._expandable else self._segment
        found = reserve(pool, size)
        if found is None:
            self._release_cached()
            found = reserve(pool, size)
        if found is None:
            raise OutOfMemory
        return found

    def _reserve(self, size: int) -> bool:
        if self._capacity is not None and self.reserved + size > self._capacity:
            return False
        self.reserved += size
        if self.reserved > self.peak_reserved:
            self.peak_reserved = self.reserved
        return True

    def _segment(self, pool: _Pool, size: int) -> tuple[int, int] | None:
        wanted, start = _segment_size(size), self._next
        if not self._reserve(wanted):
            return None
        self._next += wanted + 1
        self._segments[start] = wanted
        return start, wanted

    def _expanded(self, pool: _Pool, size: int) -> tuple[int, int] | None:
        end = self._ends.setdefault(pool, len(self._ends) << 50)
        start = self._starts.get(end, end)
        wanted = -(-(size - (end - start)) // _page(pool)) * _page(pool)
        if not self._reserve(wanted):
            return None
        if start < end:
            self._taken(pool, start)
        self._ends[pool] = end + wanted
        return start, end + wanted - start

    def _release_cached(self) -> None:
        """``release_cached_blocks``: whole free segments; of expandable ones the pages at a free block's start."""
        for pool, free in self._free.items():
            for size, start in tuple(free):
                gone = size // _page(pool) * _page(pool) if self._expandable else self._segments.get(start)
                if gone and gone <= size:
                    self._taken(pool, start)
                    self.reserved -= gone
                    if size > gone:
                        self._offer(pool, start + gone, size - gone)


def _segment_size(size: int) -> int:
    if size <= _SMALL:
        return _SMALL_SEGMENT
    return _LARGE_SEGMENT if size < _OWN_SEGMENT else -(-size // _ROUND_SEGMENT) * _ROUND_SEGMENT


def _page(pool: _Pool) -> int:
    return _SMALL_SEGMENT if pool[1] else _LARGE_SEGMENT


def reserved(rank: RankModel, terms: Sequence[MemoryTerm]) -> int:
    """``torch.cuda.max_memory_reserved`` after two steps, from the terms of each moment's fullest instants."""
    alive = _alive(rank, terms)
    allocator = CachingAllocator(expandable=rank.spec.train.allocator == "expandable")
    held: dict[_Kind, list[int]] = {}
    now: _Blocks = {}
    number, stays = 0, alive["idle"]
    for blocks in _order(alive):
        for kind, count in now.items():
            for _ in range(count - blocks.get(kind, 0)):
                allocator.release(held[kind].pop())
        begun = [kind for kind, count in blocks.items() if count > now.get(kind, 0)]
        for kind in sorted(begun, key=lambda kind: (kind not in stays, -kind[2])):
            own = held.setdefault(kind, [])
            for _ in range(blocks[kind] - len(own)):
                allocator.allocate(number, kind[2], kind[1])
                own.append(number)
                number += 1
        now = blocks
    return allocator.peak_reserved


def _alive(rank: RankModel, terms: Sequence[MemoryTerm]) -> dict[Moment, Counter[_Kind]]:
    """The blocks of each moment; a step's first two all-gathers come before anything is saved."""
    cutter, alive = _Cutter(rank), {moment: Counter[_Kind]() for moment in MOMENTS}
    for term in terms:
        if term.pile not in OUTSIDE_PILES and term.bytes >= MIB:
            blocks = [*cutter.blocks(term)]
            for moment in term.moments:
                for kind, count in blocks:
                    alive[moment][kind] += count
            if "forward" in term.moments and cutter.gathers(term):
                alive["load"].update((term.pile, _AHEAD, size) for size in cutter.gathered)
    return alive


def _order(alive: Mapping[Moment, _Blocks]) -> Iterator[_Blocks]:
    """The blocks alive at each moment of loading and two steps; the first step ends with new optimizer states."""
    now, stepped = alive["load"], False
    yield now
    for moment in (*_STEP, *_STEP):
        stepped = stepped or moment == "step"
        after = alive[moment]
        if not stepped:
            after = {kind: count for kind, count in after.items() if kind[0] != _MOMENTS}
        if moment == "second_layer_backward":
            yield {kind: -(-(now.get(kind, 0) + after.get(kind, 0)) // 2) for kind in {**now, **after}}
        yield after
        now = after


class _Cutter:
    """Cuts terms into blocks by their pile, without a look at their formulas."""

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
            # Where blocks are alike, one tensor of each checkpointed block.
            self._stays = [kept] if len(rank.blocks) == 1 and 0 < kept < sum(self._rows) else self._rows
            most = kind.elements.largest
            self._block = [size for size in kind.elements.matrices if 8 * size > most] or [most]

    def blocks(self, term: MemoryTerm) -> Iterator[tuple[_Kind, int]]:
        """The blocks of a term, with how many there are."""
        pile, size = term.pile, term.bytes
        stream = pile if pile in self._rank.engine.own_streams else ""
        if self.gathers(term):  # Of what FSDP2 gathers one block is the all-gather's output.
            root, block = self.gathered
            ahead = max(0, min(block, size - root))
            yield (pile, _AHEAD, ahead), int(ahead > 0)
            size -= ahead
        for one, count in self._sizes(term, size).items():
            if one >= MIB and count:
                yield (pile, stream, -(-one // 512) * 512), count

    def gathers(self, term: MemoryTerm) -> bool:
        """True if a term is weights that FSDP gathers, module by module."""
        rank = self._rank
        return term.pile == "gather_buffers" and rank.view.states.parameters < 1 and not rank.engine.flat_states

    def _sizes(self, term: MemoryTerm, size: int) -> Counter[int]:
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
            return Counter({size // 2: 2})  # One of each thread.
        if pile == "gradients" and rank.engine.shard_rows:  # A reduction's output, of which the shards are views.
            root, block = self._reduced
            whole = size >= int(z * rank.elements.gradients)
            return Counter([root] if whole else []) + _filled(size - root * whole, [block])
        if rank.engine.flat_states and (pile not in ("gather_buffers", "gradients") or "load" in term.moments):
            return _filled(size, [z * rank.elements.optimizer] if pile == "optimizer_states" else [])
        if pile == "reduce_buffers":  # The gradient of the output projection, and the input of a reduction.
            head = 0 if term.instant else min(size, z * rank.head.largest)
            return self._weights(head, z) + Counter([size - head])
        return self._weights(size, z if pile == "gather_buffers" else z * self._share)

    def _weights(self, size: int, z: Value) -> Counter[int]:
        """Cut bytes of weights: embedding and head, once for each copy of the model, and the matrices of its blocks."""
        times = max(1, int(size // (z * self._rank.elements.whole or 1)))
        found = Counter[int]()
        for each in (int(z * weight) or 1 for weight in self._root):
            number = min(times, size // each)
            found[each] += number
            size -= number * each
        return found + _filled(size, [int(z * weight) for weight in self._block])


def _filled(size: int, sizes: Iterable[int]) -> Counter[int]:
    """Cut ``size`` bytes into blocks of these sizes, in turn; where they would be over ``_MOST``, into larger ones."""
    usable = sorted((each for each in sizes if each >= MIB), reverse=True)
    if not usable:
        return Counter([size])
    joined = size // sum(usable) * len(usable) // _MOST + 1
    usable = [joined * each for each in usable]
    turns, rest = divmod(size, sum(usable))
    found = Counter({each: count * turns for each, count in Counter(usable).items()})
    for each in usable:
        number, rest = divmod(rest, each)
        found[each] += number
    found[rest] += 1
    return found
