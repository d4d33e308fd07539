"""Whole documents packed into as few samples of one length as possible, given only their lengths.

Best-fit decreasing: the longest piece first, each into the fullest sample that still has room for it (Johnson, Near-
optimal bin packing algorithms, MIT, 1973), as in TRL and Megatron Bridge. A sample is ``length`` inputs and one more
token, the last label. Samples are ordered by the first piece in each.
"""

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

from launcher.base.frozen import dataclass

_FEWEST = 2  # Fewest tokens of a piece with a label: a document's first token is not a label.


@dataclass(frozen=True, slots=True)
class Packed:
    """Pieces of a token sequence, and the pieces that make up each sample."""

    starts: array[int]
    stops: array[int]
    order: array[int]  # Pieces, sample by sample.
    ends: array[int]  # Where each sample's pieces end in ``order``.

    def pieces(self, index: int) -> list[tuple[int, int]]:
        """The first token of each piece of a sample, and the one after its last."""
        first = self.ends[index - 1] if index else 0
        return [(self.starts[place], self.stops[place]) for place in self.order[first : self.ends[index]]]


def packed(ends: Iterable[int], length: int, *, split: bool, start: int = 0) -> Packed:
    """Pack documents that end at these positions of a token sequence; the first begins at ``start``.

    A document longer than a sample is truncated, or with ``split`` continues in further pieces; each piece then begins
    with the last token of the one before.
    """
    starts, stops = array("q"), array("q")
    for begin, end in pairwise(chain([start], ends)):
        for first in range(begin, end - 1, length) if split else (begin,):
            stop = min(end, first + length + 1)
            if stop - first >= _FEWEST:
                starts.append(first)
                stops.append(stop)
    groups = bins([stop - start for start, stop in zip(starts, stops, strict=True)], length + 1)
    order, sample_ends = array("q"), array("q")
    for group in groups:
        order.extend(group)
        sample_ends.append(len(order))
    return Packed(starts, stops, order, sample_ends)


def bins(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Groups of indices whose sizes share a bin, no bin above the capacity, ordered by the first index of each."""
    found: list[list[int]] = []
    room: list[int] = []  # Free space of the bins, ascending, without duplicates.
    having: dict[int, list[int]] = {}  # The bins with each amount of free space.
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        size = sizes[place]
        nearest = bisect_left(room, size)
        if nearest == len(room):
            number, left = len(found), capacity
            found.append([])
        else:
            left = room[nearest]
            number = having[left].pop()
            if not having[left]:
                del room[nearest], having[left]
        found[number].append(place)
        left -= size
        if left >= _FEWEST:
            if left not in having:
                insort(room, left)
                having[left] = []
            having[left].append(number)
    return sorted(map(sorted, found))
