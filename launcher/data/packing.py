"""Documents packed into samples of one length, whole and as few as they fit into, by their lengths alone.

Best fit decreasing: the longest piece first, each into the fullest sample that still has room for it (Johnson, Near-
optimal bin packing algorithms, MIT, 1973), as TRL and Megatron Bridge pack. A sample is ``length`` inputs and one more
token, the last label. The order of samples is that of the first piece in each.
"""

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

from launcher.base.frozen import dataclass

_FEWEST = 2  # Tokens of a piece that has a label: the first token of a document is none.


@dataclass(frozen=True, slots=True)
class Packed:
    """Pieces of a row of tokens, and the pieces that each sample is made of."""

    starts: array[int]
    stops: array[int]
    order: array[int]  # Pieces, sample by sample.
    ends: array[int]  # Where each sample's pieces end in ``order``.

    def pieces(self, index: int) -> list[tuple[int, int]]:
        """The first token of each piece of a sample, and the one behind its last."""
        first = self.ends[index - 1] if index else 0
        return [(self.starts[place], self.stops[place]) for place in self.order[first : self.ends[index]]]


def packed(ends: Iterable[int], length: int, *, split: bool, start: int = 0) -> Packed:
    """Pack documents that end at these tokens of a long row, the first of which begins at ``start``.

    One that is longer than a sample is cut off, or with ``split`` goes on in further pieces; as in a long row, a piece
    begins with the last token of the one before.
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
    """The places of sizes, none above the capacity, that are put together; in the order of the first of each."""
    found: list[list[int]] = []
    room: list[int] = []  # What is left in some bins, ascending, each once.
    having: dict[int, list[int]] = {}  # The bins that have so much left.
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
