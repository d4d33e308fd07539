"""The model of the caching allocator against cases computed by hand from its constants."""

from __future__ import annotations

import pytest

from launcher.base.units import MIB

pytest.importorskip("torch", reason="the trace needs the extra 'fsdp'")

from launcher.estimate.memory.reserved import CachingAllocator, OutOfMemory
from launcher.worker.memory.recording import Allocation, Recording
from launcher.worker.trace.allocator import needed, replay


def test_a_small_block_reserves_two_mebibytes_and_the_next_shares_them() -> None:
    allocator = CachingAllocator()
    allocator.allocate(512)
    allocator.allocate(MIB)
    assert (allocator.allocated, allocator.reserved) == (512 + MIB, 2 * MIB)


def test_a_block_of_up_to_ten_mebibytes_reserves_twenty() -> None:
    allocator = CachingAllocator()
    allocator.allocate(9 * MIB)
    allocator.allocate(9 * MIB)
    assert (allocator.allocated, allocator.reserved) == (18 * MIB, 20 * MIB)


def test_a_large_block_reserves_its_own_size_in_steps_of_two_mebibytes() -> None:
    allocator = CachingAllocator()
    allocator.allocate(10 * MIB + 512)
    assert allocator.reserved == 12 * MIB


def test_a_rest_of_at_most_one_mebibyte_stays_with_a_large_block() -> None:
    allocator = CachingAllocator()
    allocator.allocate(11 * MIB)
    assert (allocator.allocated, allocator.reserved) == (12 * MIB, 12 * MIB)
    allocator.allocate(11 * MIB - 512)
    assert allocator.allocated == 23 * MIB - 512


def test_the_best_fitting_free_block_is_taken() -> None:
    allocator = CachingAllocator()
    for blocks in [allocator.allocate(size) for size in (40 * MIB, 20 * MIB)]:
        allocator.release(blocks)
    allocator.allocate(18 * MIB)
    allocator.allocate(40 * MIB)
    assert allocator.reserved == 60 * MIB


def test_neighbours_that_are_free_become_one_block() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(60 * MIB))
    first, second, third = allocator.allocate(20 * MIB, count=3)
    for block in (first, third, second):
        allocator.release([block])
    allocator.allocate(60 * MIB)
    assert allocator.reserved == 60 * MIB


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("size", [512, 700 * 512, 3 * MIB, 11 * MIB - 512, 12 * MIB + 512, 40 * MIB])
def test_many_equal_blocks_at_once_are_as_one_after_the_other(size: int, *, expandable: bool) -> None:
    together, alone = CachingAllocator(expandable=expandable), CachingAllocator(expandable=expandable)
    for allocator in (together, alone):
        allocator.release(allocator.allocate(75 * MIB))
    blocks = together.allocate(size, count=40)
    assert blocks == [block for _ in range(40) for block in alone.allocate(size)]
    together.release(blocks[::3])
    for block in blocks[::3]:
        alone.release([block])
    assert together.allocate(5 * MIB, count=9) == [block for _ in range(9) for block in alone.allocate(5 * MIB)]
    assert (together.allocated, together.peak_reserved) == (alone.allocated, alone.peak_reserved)


def test_streams_do_not_share_memory() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(20 * MIB, stream=0))
    allocator.allocate(20 * MIB, stream=1)
    assert allocator.reserved == 40 * MIB


def test_what_is_cached_is_given_back_before_memory_runs_out() -> None:
    allocator = CachingAllocator(capacity=50 * MIB)
    allocator.release(allocator.allocate(30 * MIB))
    allocator.allocate(40 * MIB)
    assert allocator.reserved == 40 * MIB
    with pytest.raises(OutOfMemory):
        allocator.allocate(20 * MIB)


def test_an_expandable_segment_grows_by_what_it_lacks() -> None:
    allocator = CachingAllocator(expandable=True)
    allocator.allocate(30 * MIB)
    assert allocator.reserved == 40 * MIB
    second = allocator.allocate(10 * MIB)
    assert allocator.reserved == 40 * MIB
    allocator.release(second)
    allocator.allocate(30 * MIB)
    assert allocator.reserved == 60 * MIB


def test_an_expandable_segment_gives_free_pages_back() -> None:
    allocator = CachingAllocator(expandable=True, capacity=60 * MIB)
    first = allocator.allocate(40 * MIB)
    allocator.allocate(20 * MIB)
    allocator.release(first)
    allocator.allocate(20 * MIB, stream=1)
    assert allocator.reserved <= 60 * MIB


def test_fragmentation_makes_the_needed_capacity_more_than_what_is_allocated() -> None:
    sizes = [20 * MIB, 20 * MIB, 20 * MIB, 40 * MIB]
    recording = Recording(
        allocations=[Allocation(bytes=size, stream=0, operation="", pile="temporary") for size in sizes],
        events=[0, -1, 1, 2, -2, 3],
    )
    assert replay(recording, expandable=False).peak_allocated == 60 * MIB
    assert needed(recording, expandable=False) == 60 * MIB
    assert replay(recording, expandable=False).peak_reserved == 80 * MIB
