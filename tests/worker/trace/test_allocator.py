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
    allocator.allocate(0, 512)
    allocator.allocate(1, MIB)
    assert (allocator.allocated, allocator.reserved) == (512 + MIB, 2 * MIB)


def test_a_block_of_up_to_ten_mebibytes_reserves_twenty() -> None:
    allocator = CachingAllocator()
    allocator.allocate(0, 9 * MIB)
    allocator.allocate(1, 9 * MIB)
    assert (allocator.allocated, allocator.reserved) == (18 * MIB, 20 * MIB)


def test_a_large_block_reserves_its_own_size_in_steps_of_two_mebibytes() -> None:
    allocator = CachingAllocator()
    allocator.allocate(0, 10 * MIB + 512)
    assert allocator.reserved == 12 * MIB


def test_a_rest_of_at_most_one_mebibyte_stays_with_a_large_block() -> None:
    allocator = CachingAllocator()
    allocator.allocate(0, 11 * MIB)
    assert (allocator.allocated, allocator.reserved) == (12 * MIB, 12 * MIB)
    allocator.allocate(1, 11 * MIB - 512)
    assert allocator.allocated == 23 * MIB - 512


def test_the_best_fitting_free_block_is_taken() -> None:
    allocator = CachingAllocator()
    for number, size in enumerate((40 * MIB, 20 * MIB)):
        allocator.allocate(number, size)
    allocator.release(0)
    allocator.release(1)
    allocator.allocate(2, 18 * MIB)
    allocator.allocate(3, 40 * MIB)
    assert allocator.reserved == 60 * MIB


def test_neighbours_that_are_free_become_one_block() -> None:
    allocator = CachingAllocator()
    allocator.allocate(0, 60 * MIB)
    allocator.release(0)
    for number in (1, 2, 3):
        allocator.allocate(number, 20 * MIB)
    for number in (1, 3, 2):
        allocator.release(number)
    allocator.allocate(4, 60 * MIB)
    assert allocator.reserved == 60 * MIB


def test_streams_do_not_share_memory() -> None:
    allocator = CachingAllocator()
    allocator.allocate(0, 20 * MIB, stream=0)
    allocator.release(0)
    allocator.allocate(1, 20 * MIB, stream=1)
    assert allocator.reserved == 40 * MIB


def test_what_is_cached_is_given_back_before_memory_runs_out() -> None:
    allocator = CachingAllocator(capacity=50 * MIB)
    allocator.allocate(0, 30 * MIB)
    allocator.release(0)
    allocator.allocate(1, 40 * MIB)
    assert allocator.reserved == 40 * MIB
    with pytest.raises(OutOfMemory):
        allocator.allocate(2, 20 * MIB)


def test_an_expandable_segment_grows_by_what_it_lacks() -> None:
    allocator = CachingAllocator(expandable=True)
    allocator.allocate(0, 30 * MIB)
    assert allocator.reserved == 40 * MIB
    allocator.allocate(1, 10 * MIB)
    assert allocator.reserved == 40 * MIB
    allocator.release(1)
    allocator.allocate(2, 30 * MIB)
    assert allocator.reserved == 60 * MIB


def test_an_expandable_segment_gives_free_pages_back() -> None:
    allocator = CachingAllocator(expandable=True, capacity=60 * MIB)
    allocator.allocate(0, 40 * MIB)
    allocator.allocate(1, 20 * MIB)
    allocator.release(0)
    allocator.allocate(2, 20 * MIB, stream=1)
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
