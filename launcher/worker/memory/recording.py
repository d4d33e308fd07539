"""A recording as data, and its peaks.

Allocations are numbered; events are their numbers as they come and ``-1 - n`` as allocation ``n`` goes; marks say where
phases begin. All that is asked of a recording is a sum over the events up to a moment. The peak of a phase is looked
for in the first and in the second half of each visit of the phase apart, because those grow linearly with the number of
layers and the higher of the two need not: ``launcher.worker.trace.report`` extrapolates them from two depths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from launcher.estimate.memory.terms import Pile


@dataclass(slots=True, kw_only=True)
class Allocation:
    """One allocation.

    Attributes:
        bytes: As the allocator hands them out.
        stream: The stream whose memory pool it comes from; 0 is the default stream.
        operation: Name of the operation that allocated it.
        pile: Its purpose; known for certain only once it has been used.
        shape: Of the first tensor in it; None where it was only resized.
        layer: The block that ran, counted from 0 as in the names of parameters; None outside of blocks.
    """

    bytes: int
    stream: int
    operation: str
    pile: Pile
    shape: tuple[int, ...] | None = None
    layer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """From this event on, everything belongs to this step (0 is loading) and phase."""

    event: int
    step: int
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment after an event.

    Attributes:
        bytes: Alive.
        event: The number of the event.
        phase: The phase that it lies in.
    """

    bytes: int
    event: int
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One half of one visit of a phase: the first visit has number 1."""

    phase: str
    visit: int
    half: int


@dataclass(slots=True, kw_only=True)
class Recording:
    """All events of one rank.

    Attributes:
        allocations: By number.
        events: ``n`` for the allocation with this number, ``-1 - n`` for its release.
        marks: Where phases begin.
    """

    allocations: list[Allocation] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def ended(self) -> Recording:
        """The recording as it is now, whatever is recorded later."""
        return Recording(allocations=list(self.allocations), events=list(self.events), marks=list(self.marks))

    @property
    def phase(self) -> str:
        """The phase that was entered last; empty before the first."""
        return self.marks[-1].phase if self.marks else ""

    def peaks(self, step: int) -> dict[str, Moment]:
        """The peak of each phase of one step; a phase that is entered several times has one."""
        found: dict[str, tuple[int, int]] = {}
        alive, ends = 0, [*(mark.event for mark in self.marks[1:]), len(self.events)]
        for mark, end in zip(self.marks, ends, strict=True):
            highest, at = alive, mark.event - 1
            for event in range(mark.event, end):
                change = self.events[event]
                alive += self.allocations[change].bytes if change >= 0 else -self.allocations[-1 - change].bytes
                if alive > highest:
                    highest, at = alive, event
            if mark.step == step and (mark.phase not in found or highest > found[mark.phase][0]):
                found[mark.phase] = (highest, at)
        return {phase: Moment(bytes=size, event=event, phase=phase) for phase, (size, event) in found.items()}

    def candidates(self, step: int) -> dict[Candidate, Moment]:
        """The peaks of the first and the second half of each visit of a phase in one step.

        A phase does the same for layer after layer, so what is alive grows or shrinks evenly and the peak is near one
        of its ends; each end's is linear in the number of layers, and the higher of the two need not be.
        """
        found: dict[Candidate, Moment] = {}
        visits: Counter[str] = Counter()
        spans = self._spans()
        for mark, moment in self._moments():
            if mark.step != step:
                continue
            if moment.event < mark.event:
                visits[mark.phase] += 1
            half = 1 if moment.event >= (mark.event + spans[mark.event]) // 2 else 0
            candidate = Candidate(phase=mark.phase, visit=visits[mark.phase], half=half)
            known = found.get(candidate)
            if known is None or moment.bytes > known.bytes:
                found[candidate] = moment
        return found

    def _spans(self) -> dict[int, int]:
        """The end of each mark's events; of marks at the same event the last counts."""
        ends = [*(mark.event for mark in self.marks[1:]), len(self.events)]
        return {mark.event: end for mark, end in zip(self.marks, ends, strict=True)}

    def resting(self, step: int) -> int:
        """Bytes alive at the end of a step."""
        last = 0
        for mark, moment in self._moments():
            if mark.step <= step:
                last = moment.bytes
        return last

    def piles(self, event: int) -> dict[Pile, int]:
        """Bytes alive after an event, by pile."""
        found: Counter[Pile] = Counter()
        for allocation in self.alive(event):
            found[allocation.pile] += allocation.bytes
        return dict(found)

    def alive(self, event: int) -> list[Allocation]:
        """The allocations that are alive after an event."""
        numbers: dict[int, None] = {}
        for change in self.events[: event + 1]:
            if change >= 0:
                numbers[change] = None
            else:
                del numbers[-1 - change]
        return [self.allocations[number] for number in numbers]

    def _moments(self) -> Iterator[tuple[Mark, Moment]]:
        """Every moment with its mark: where a phase begins, and after each event."""
        alive = 0
        for mark, end in zip(self.marks, [*(mark.event for mark in self.marks[1:]), len(self.events)], strict=True):
            yield mark, Moment(bytes=alive, event=mark.event - 1, phase=mark.phase)
            for event in range(mark.event, end):
                change = self.events[event]
                alive += self.allocations[change].bytes if change >= 0 else -self.allocations[-1 - change].bytes
                yield mark, Moment(bytes=alive, event=event, phase=mark.phase)
