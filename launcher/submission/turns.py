"""How many jobs of each array of a sweep may run at once, and which array waits for which, so that a limit holds.

Slurm limits the jobs of one array (``--array=0-7%2``) and knows no limit over several. So arrays are put into lanes
that run beside each other: the widths of the lanes add up to the limit, and the arrays of one lane come one after the
other (``--dependency=afterany``). The limit is never passed; it is not reached while a lane is done before the others,
or an array has fewer jobs left than its lane is wide. Wider lanes go to those with more jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One array.

    Attributes:
        at_once: How many of its jobs may run at once.
        after: The index of the array that must have ended before; None where it waits for none.
    """

    at_once: int
    after: int | None


def turns(sizes: Sequence[int], limit: int | None) -> list[Turn]:
    """A turn for each array.

    Args:
        sizes: Jobs of each array.
        limit: Jobs of all of them at once; None leaves it to Slurm.
    """
    if limit is None or sum(sizes) <= limit:
        return [Turn(at_once=size, after=None) for size in sizes]
    lanes = _lanes(sizes, min(limit, len(sizes)))
    found: dict[int, Turn] = {}
    for lane, width in zip(lanes, _widths(lanes, sizes, limit), strict=True):
        for place, array in enumerate(lane):
            after = lane[place - 1] if place else None
            found[array] = Turn(at_once=min(width, sizes[array]), after=after)
    return [found[array] for array in range(len(sizes))]


def _lanes(sizes: Sequence[int], count: int) -> list[list[int]]:
    """The arrays shared out among lanes, the largest first, each to the lane with the fewest jobs so far."""
    lanes: list[list[int]] = [[] for _ in range(count)]
    for array in sorted(range(len(sizes)), key=lambda array: -sizes[array]):
        min(lanes, key=lambda lane: sum(sizes[other] for other in lane)).append(array)
    return [sorted(lane) for lane in lanes]


def _widths(lanes: Sequence[Sequence[int]], sizes: Sequence[int], limit: int) -> list[int]:
    """The limit shared out among lanes: one more at a time to the lane that has most jobs for each of its places."""
    widths = [1] * len(lanes)
    jobs = [sum(sizes[array] for array in lane) for lane in lanes]
    widest = [max(sizes[array] for array in lane) for lane in lanes]
    while sum(widths) < limit:
        narrow = [n for n in range(len(lanes)) if widths[n] < widest[n]]
        if not narrow:
            break
        widths[max(narrow, key=lambda n: jobs[n] / widths[n])] += 1
    return widths
