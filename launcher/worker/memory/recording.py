"""A recording of allocations as data, and its peaks.

Allocations are numbered. An event is ``n`` when allocation ``n`` is made and ``-1 - n`` when it is freed; marks tell
where phases begin. The peak of a phase is searched separately in the first and the second half of each visit: each of
these grows linearly with the number of layers (``launcher.worker.trace`` extrapolates them), but the higher of the two
need not.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from launcher.estimate.memory.terms import Pile


@dataclass(slots=True, kw_only=True)
class Allocation:
    """One allocation: its size, origin and pile."""

    bytes: int  # As the allocator rounds it.
    stream: int  # The stream whose memory pool it comes from; 0 is the default stream.
    operation: str  # Name of the operation that allocated it.
    pile: Pile  # Its purpose; final only once it has been used.
    shape: tuple[int, ...] | None = None  # Shape of the first tensor in it; None if it was only resized.
    # The block that ran, counted from 0 as in the names of parameters; None outside of blocks.
    layer: int | None = None


def by_pile(allocations: Iterable[Allocation]) -> dict[Pile, int]:
    """Bytes of allocations, by pile."""
    found: Counter[Pile] = Counter()
    for each in allocations:
        found[each.pile] += each.bytes
    return dict(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The start of a phase: from this event on, everything belongs to this step (0 is loading) and phase."""

    event: int
    step: int
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment after an event, with the live bytes."""

    bytes: int
    event: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One half of one visit to a phase; visits are numbered from 1."""

    phase: str
    visit: int
    half: int


@dataclass(slots=True, kw_only=True)
class Recording:
    """All events of one rank: ``n`` for the allocation with this number, ``-1 - n`` for its release."""

    allocations: list[Allocation] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def snapshot(self) -> "Recording":
        """A copy of the recording that later events do not change."""
        return Recording(allocations=list(self.allocations), events=list(self.events), marks=list(self.marks))

    @property
    def phase(self) -> str:
        """The current phase; empty before the first."""
        return self.marks[-1].phase if self.marks else ""

    def peaks(self, step: int) -> dict[str, Moment]:
        """The peak of each phase of one step; a phase entered several times has one peak."""
        found: dict[str, Moment] = {}
        for mark, event, alive in self._levels():
            if mark.step == step and (mark.phase not in found or alive > found[mark.phase].bytes):
                found[mark.phase] = Moment(bytes=alive, event=event)
        return found

    def candidates(self, step: int) -> dict[Candidate, Moment]:
        """The peaks of the first and the second half of each visit to a phase in one step."""
        found: dict[Candidate, Moment] = {}
        visits: Counter[str] = Counter()
        ends = {mark.event: end for mark, end in self._spans()}  # Of marks at the same event, the last one counts.
        for mark, event, alive in self._levels():
            if mark.step != step:
                continue
            if event < mark.event:
                visits[mark.phase] += 1
            half = 1 if event >= (mark.event + ends[mark.event]) // 2 else 0
            candidate = Candidate(phase=mark.phase, visit=visits[mark.phase], half=half)
            if candidate not in found or alive > found[candidate].bytes:
                found[candidate] = Moment(bytes=alive, event=event)
        return found

    def resting(self, step: int) -> int:
        """Live bytes at the end of a step."""
        return [alive for mark, _, alive in self._levels() if mark.step <= step][-1]

    def piles(self, event: int) -> dict[Pile, int]:
        """Live bytes by pile after an event."""
        return by_pile(self.alive(event))

    def alive(self, event: int) -> list[Allocation]:
        """The allocations that are live after an event."""
        numbers: dict[int, None] = {}
        for change in self.events[: event + 1]:
            if change >= 0:
                numbers[change] = None
            else:
                del numbers[-1 - change]
        return [self.allocations[number] for number in numbers]

    def _spans(self) -> Iterator[tuple[Mark, int]]:
        return zip(self.marks, [*(mark.event for mark in self.marks[1:]), len(self.events)], strict=True)

    def _levels(self) -> Iterator[tuple[Mark, int, int]]:
        alive = 0
        for mark, end in self._spans():
            yield mark, mark.event - 1, alive
            for event in range(mark.event, end):
                change = self.events[event]
                alive += self.allocations[change].bytes if change >= 0 else -self.allocations[-1 - change].bytes
                yield mark, event, alive
