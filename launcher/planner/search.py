"""The search: the fastest layout of each of the best ideas, exactly, with as few estimates as that takes.

A heap holds what is not decided yet, by a bound below the time of all layouts in it: first frames, by the passes of
their slowest stage alone; then cores, by their time without relief, which only adds time; then layouts, by their time.
The smallest is taken and refined: a frame into its cores, a core into its layouts, unless it does not fit even with the
strongest relief. A layout that is taken and fits is the fastest of its idea, since all that is left is slower, and its
idea is done. The search ends with the last idea that is shown.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from launcher.planner.judge import Judge
from launcher.planner.memory_savings import MODES
from launcher.planner.result import Counts, Idea
from launcher.planner.space import Frame, Space
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec
from launcher.spec.edit import changed_at

SHOWN = 10
"""Ideas that an answer has."""

_TRIED = 500
"""Cores that are looked at for a first result."""

_ROUNDING = 1 - 1e-9
"""A sum of floating-point numbers in another order may be larger by so little."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout that fits; the fastest sorts first, of equal ones that which does least beside training.

    The order is total: :attr:`place` says it, and ends with the hash of the run, so that no two runs are compared.

    Attributes:
        seconds: Seconds of a step; 0 where they are unknown.
        effort: How much it does beside training.
        order: Its number among those of its search; the other half of a search counts for itself.
        opening: The number of its engine's opening.
        spec: The run.
        verdict: The verdict on its memory.
    """

    seconds: float
    effort: tuple[int, ...]
    order: int
    opening: int
    spec: RunSpec
    verdict: Verdict

    @property
    def place(self) -> tuple[float, tuple[int, ...], int, int, str]:
        """What it is sorted by."""
        return (self.seconds, self.effort, self.order, self.opening, self.spec.hash)

    def __lt__(self, other: Candidate) -> bool:
        return self.place < other.place

    @property
    def idea(self) -> Idea:
        """The idea that it is a size of."""
        return Idea.of(self.spec)


@dataclass(slots=True)
class Found:
    """What a search has found so far.

    Attributes:
        best: The fastest layout of each idea that fits.
        tight: The fastest of each that fits within the estimate's error alone.
        early: A layout that fits, found at once; there may be faster ones.
        considered: Layouts.
        invalid: Those of them that are refused.
        unfit: Those that do not fit.
        judged: Estimates of memory that were made.
    """

    best: dict[Idea, Candidate] = field(default_factory=dict)
    tight: dict[Idea, Candidate] = field(default_factory=dict)
    early: Candidate | None = None
    considered: int = 0
    invalid: int = 0
    unfit: int = 0
    judged: int = 0

    @property
    def first(self) -> Candidate | None:
        """The fastest so far."""
        return min([*self.best.values(), *([self.early] if self.early else [])], default=None)

    def shown(self) -> list[Candidate]:
        """The best of each idea, the fastest first; tight ones only where nothing fits for certain."""
        return sorted((self.best or self.tight).values())[:SHOWN]

    def others(self) -> list[Candidate]:
        """The fastest of each engine that has none among the shown."""
        fastest: dict[str, Candidate] = {}
        for each in sorted(self.best.values()):
            fastest.setdefault(each.spec.backend.name, each)
        shown = {each.spec.backend.name for each in self.shown()}
        return [each for engine, each in fastest.items() if engine not in shown]

    def merge(self, other: Found) -> None:
        """Take over what a search of other frames has found."""
        for own, theirs in ((self.best, other.best), (self.tight, other.tight)):
            for idea, candidate in theirs.items():
                own[idea] = min(candidate, own.get(idea, candidate))
        self.considered += other.considered
        self.invalid += other.invalid
        self.unfit += other.unfit
        self.judged += other.judged

    def counts(self) -> Counts:
        """What became of all layouts."""
        slower = self.considered - self.invalid - self.unfit - len(self.tight)
        return Counts(
            considered=self.considered,
            invalid=self.invalid,
            unfit=self.unfit,
            tight=len(self.tight),
            slower=slower,
        )


class _Node(NamedTuple):
    """Something undecided; of equal bounds frames come first, then cores, so that a layout that is taken is least."""

    bound: float
    kind: int
    effort: tuple[int, ...]
    order: int
    opening: int
    content: object


class _Relief(NamedTuple):
    """Layouts of a core that take the same time, since they differ in the allocator alone.

    Attributes:
        core: The core.
        mode: The place of its activation checkpointing among the space's.
        loss: The place of its loss.
    """

    core: RunSpec
    mode: int
    loss: int


type OpenedFrame = tuple[int, Frame]
"""A frame, with the number of its opening."""


class Search:
    """One search over the spaces of several engines."""

    def __init__(self, spaces: Sequence[Space], judge: Judge) -> None:
        """Begin.

        Args:
            spaces: The layouts of each opening.
            judge: Rules and estimates.
        """
        self.found = Found()
        self._spaces, self._judge = spaces, judge
        self._heap: list[_Node] = []
        self._order = 0

    def run(self, frames: Sequence[OpenedFrame]) -> Iterator[Found]:
        """Search some frames; what has been found so far comes after each step, and the whole answer last.

        Args:
            frames: The frames, each with the number of its opening.
        """
        for opening, frame in frames:
            self._add_frame(opening, frame)
            yield self.found
        self._look_for_one()
        yield self.found
        while self._heap and len(self.found.best) < SHOWN:
            self._take(heapq.heappop(self._heap))
            yield self.found
        yield from self._of_the_others()

    def _look_for_one(self) -> None:
        """Look for any layout that fits, among the fastest frames with micro-batches of one sequence."""
        for opening, core in islice(self._small_cores(), _TRIED):
            spec = changed_at(core, self._spaces[opening].relief.strongest)
            if not self._is_valid(spec):
                continue
            verdict = self._judge.verdict(spec)
            if verdict.name == "fits":
                seconds = self._judge.seconds(spec) or 0.0
                self.found.early = Candidate(seconds, effort(spec), 0, opening, spec, verdict)
                return

    def _small_cores(self) -> Iterator[tuple[int, RunSpec]]:
        for node in sorted(self._heap):
            frame = node.content
            if isinstance(frame, Frame) and frame.settings["train.micro_batch_size"] == 1:
                yield from (
                    (node.opening, core) for core in self._spaces[node.opening].cores(frame, self._judge.errors)
                )

    def _of_the_others(self) -> Iterator[Found]:
        """Go on until every engine has a layout that fits, or is known to have none."""
        while self._heap:
            have = {each.spec.backend.name for each in self.found.best.values()}
            missing = [space.base.backend.name not in have for space in self._spaces]
            self._heap = [node for node in self._heap if missing[node.opening]]
            heapq.heapify(self._heap)
            while self._heap and have == {each.spec.backend.name for each in self.found.best.values()}:
                self._take(heapq.heappop(self._heap))
                yield self.found

    def _take(self, node: _Node) -> None:
        if isinstance(node.content, Frame):
            self._open_frame(node, node.content)
        elif isinstance(node.content, RunSpec):
            self._open_core(node, node.content)
        elif isinstance(node.content, _Relief):
            self._judge_relief(node, node.content)

    def _push(self, opening: int, kind: int, bound: float, content: object, effort: tuple[int, ...] = ()) -> None:
        self._order += 1
        heapq.heappush(self._heap, _Node(bound, kind, effort, self._order, opening, content))

    def _add_frame(self, opening: int, frame: Frame) -> None:
        self.found.considered += frame.size
        space = self._spaces[opening]
        core = next(space.cores(frame, self._judge.errors), None)
        if core is None:
            self.found.invalid += frame.size
            return
        bound = self._judge.least_seconds(changed_at(core, space.relief.mildest), space.chunkings(frame))
        self._push(opening, 0, _ROUNDING * (bound or 0.0), frame)

    def _open_frame(self, node: _Node, frame: Frame) -> None:
        space, valid = self._spaces[node.opening], 0
        for core in space.cores(frame, self._judge.errors):
            valid += 1
            if Idea.of(core) not in self.found.best:
                fastest = changed_at(core, space.relief.mildest)
                self._push(node.opening, 1, _ROUNDING * (self._judge.seconds(fastest) or 0.0), core)
        self.found.invalid += frame.size - valid * space.relief.size

    def _open_core(self, node: _Node, core: RunSpec) -> None:
        if Idea.of(core) in self.found.best:
            return
        space = self._spaces[node.opening]
        strongest = changed_at(core, space.relief.strongest)
        if self._is_valid(strongest) and not self._fits(strongest):
            self.found.unfit += space.relief.size
            return
        self._push(node.opening, 2, node.bound, _Relief(core, 0, 0), effort(core))

    def _is_valid(self, spec: RunSpec) -> bool:
        return next(self._judge.errors(spec), None) is None

    def _fits(self, spec: RunSpec) -> bool:
        self.found.judged += 1
        return self._judge.verdict(spec).may_start

    def _judge_relief(self, node: _Node, relief: _Relief) -> None:
        """Judge the layouts of a relief; where none fits, go on with those that save more and take longer."""
        idea = Idea.of(relief.core)
        if idea in self.found.best or self._take_fitting(node, relief, idea):
            return
        space, (core, mode, loss) = self._spaces[node.opening], relief
        further = [_Relief(core, mode, loss + 1), *([_Relief(core, mode + 1, 0)] if loss == 0 else [])]
        for each in further:
            if each.mode < len(space.relief.modes) and each.loss < len(space.relief.losses):
                spec = changed_at(core, space.relief.at(each.mode, each.loss)[0])
                self._push(node.opening, 2, self._judge.seconds(spec) or 0.0, each, effort(spec))

    def _take_fitting(self, node: _Node, relief: _Relief, idea: Idea) -> bool:
        """Take the layout of a relief that fits and does least; False where none fits for certain."""
        fitting: Candidate | None = None
        layouts = self._spaces[node.opening].relief.at(relief.mode, relief.loss)
        for left, settings in reversed(list(enumerate(layouts, 1))):
            spec = changed_at(relief.core, settings)
            if not self._is_valid(spec):
                self.found.invalid += 1
                continue
            self.found.judged += 1
            verdict = self._judge.verdict(spec)
            candidate = Candidate(node.bound, effort(spec), node.order, node.opening, spec, verdict)
            if not verdict.fits:
                self.found.unfit += left  # Those that save less fit no better.
                break
            if verdict.name == "fits":
                fitting = candidate
            elif fitting is None:
                self.found.tight.setdefault(idea, candidate)
        if fitting is not None:
            self.found.best[idea] = fitting
        return fitting is not None


def effort(spec: RunSpec) -> tuple[int, ...]:
    """How much a layout does beside training, for the order of those that take the same time or an unknown one."""
    parallel, zero, train = spec.parallel, spec.zero, spec.train
    return (
        (zero.offload_optimizer != "none") + (zero.offload_parameters != "none"),
        MODES.index(spec.checkpointing.mode),
        spec.model_parallel * parallel.expert,
        zero.stage,
        parallel.virtual_pipeline,
        parallel.first_stage_layers is not None,
        parallel.schedule not in ("1f1b", "interleaved"),
        parallel.expert_tensor is not None,
        zero.hpz,
        train.loss == "chunked",
        train.allocator != "default",
        -spec.micro_batch_size,
    )
