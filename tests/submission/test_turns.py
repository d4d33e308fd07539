"""A limit on the jobs of a sweep holds over all of its arrays."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from launcher.submission.slurm_jobs import ArraySchedule, turns


@pytest.mark.parametrize(
    ("sizes", "limit", "expected"),
    [
        ([3, 5], None, [(3, None), (5, None)]),
        ([3, 5], 8, [(3, None), (5, None)]),
        ([3, 5], 4, [(2, None), (2, None)]),
        ([1, 9], 4, [(1, None), (3, None)]),
        ([3, 5], 1, [(1, None), (1, 0)]),
        ([4, 2, 2], 2, [(1, None), (1, None), (1, 1)]),
    ],
)
def test_arrays_share_the_limit_or_wait_for_each_other(
    sizes: list[int], limit: int | None, expected: list[tuple[int, int | None]]
) -> None:
    assert [(turn.at_once, turn.after) for turn in turns(sizes, limit)] == expected


def most_at_once(sizes: list[int], found: list[ArraySchedule]) -> int:
    """The most jobs that may run together: of every chain of arrays the widest, since they come one after the other."""
    first: dict[int, int] = {}
    for array, turn in enumerate(found):
        first[array] = array if turn.after is None else first[turn.after]
    return sum(max(found[n].at_once for n in range(len(sizes)) if first[n] == lane) for lane in set(first.values()))


@settings(max_examples=40)
@given(some.lists(some.integers(1, 30), min_size=1, max_size=8), some.integers(1, 40))
def test_the_limit_is_never_passed_and_every_array_has_its_turn(sizes: list[int], limit: int) -> None:
    found = turns(sizes, limit)
    assert most_at_once(sizes, found) <= limit
    assert all(1 <= turn.at_once <= size for turn, size in zip(found, sizes, strict=True))
    assert all(turn.after is None or turn.after < array for array, turn in enumerate(found))
    followers = [turn.after for turn in found if turn.after is not None]
    assert len(followers) == len(set(followers)), "an array is waited for by one other"
    if limit >= sum(sizes):
        assert most_at_once(sizes, found) == sum(sizes)
