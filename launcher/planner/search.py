"""The search: the fastest layout of each of the best ideas, exactly, with as few estimates as that takes.

Every core's time without relief is a bound below that of all of its layouts, since relief only adds time. Cores are
taken in the order of their bounds; of each the relief is found with which it fits at the least time, the strongest
first, since a core that does not fit with that one fits with none. The search ends where the next bound is above the
time of the last idea that is shown: what is left cannot be faster.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from launcher.planner.judge import Judge
from launcher.planner.result import Counts, Idea
from launcher.planner.space import Settings
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec
from launcher.spec.edit import changed_at

SHOWN = 10
"""Ideas that an answer has."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout that fits: its run, its seconds a step (0 where unknown), the verdict, and the opening that it is of."""

    seconds: float
    effort: tuple[int, ...]
    order: int
    spec: RunSpec
    verdict: Verdict
    opening: int

    @property
    def rank(self) -> tuple[float, tuple[int, ...], int]:
        """The fastest first; of equal ones that which does least beside training."""
        return self.seconds, self.effort, self.order


@dataclass(slots=True)
class Found:
    """What a search has found so far."""

    best: dict[Idea, Candidate] = field(default_factory=dict)
    tight: dict[Idea, Candidate] = field(default_factory=dict)
    considered: int = 0
    invalid: int = 0
    unfit: int = 0
    asked: int = 0

    def take(self, candidate: Candidate) -> None:
        """Keep a candidate if it is the best of its idea."""
        best = self.tight if candidate.verdict.name == "tight" else self.best
        idea = Idea.of(candidate.spec)
        if idea not in best or candidate.rank < best[idea].rank:
            best[idea] = candidate

    def shown(self) -> list[Candidate]:
        """The best of each idea, the fastest first."""
        return sorted(self.best.values(), key=lambda each: each.rank)[:SHOWN]

    def limit(self) -> float:
        """Seconds above which nothing changes the answer any more."""
        shown = self.shown()
        return shown[-1].seconds if len(shown) == SHOWN else float("inf")

    def counts(self) -> Counts:
        """What became of all layouts."""
        left = self.considered - self.invalid - self.unfit
        return Counts(considered=self.considered, invalid=self.invalid, unfit=self.unfit, slower=left)


type Cores = Iterable[tuple[int, RunSpec, Sequence[Settings]]]
"""Cores with the number of their opening and their relief."""


def search(cores: Cores, judge: Judge) -> Iterator[Found]:
    """Search; what has been found so far comes after each core that was looked at, and the whole answer last.

    Args:
        cores: The valid layouts without relief.
        judge: Rules and estimates.
    """
    found, heap = Found(), []
    for order, (opening, core, relief) in enumerate(cores):
        found.considered += len(relief)
        mildest = _mildest(core, relief, judge)
        if mildest is None:
            found.invalid += len(relief)
            continue
        seconds = judge.seconds(mildest) or 0.0
        heap.append((seconds, effort(mildest), order, opening, core, relief))
    heapq.heapify(heap)
    while heap and heap[0][0] <= found.limit():
        _, _, order, opening, core, relief = heapq.heappop(heap)
        _look_at(found, core, relief, judge, order=order, opening=opening)
        yield found
    yield found


def _mildest(core: RunSpec, relief: Sequence[Settings], judge: Judge) -> RunSpec | None:
    """The first valid layout of a core."""
    for settings in relief:
        spec = changed_at(core, settings)
        if next(judge.errors(spec), None) is None:
            return spec
    return None


def _look_at(
    found: Found, core: RunSpec, relief: Sequence[Settings], judge: Judge, *, order: int, opening: int
) -> None:
    """Find the fastest relief of a core with which it fits."""
    layouts = [spec for settings in relief if _is_valid(spec := changed_at(core, settings), judge)]
    found.invalid += len(relief) - len(layouts)
    strongest = judge.verdict(layouts[-1])
    if not strongest.fits:
        found.unfit += len(layouts)
        return
    # Layouts that differ in the allocator alone take the same time.
    timed = itertools.groupby(layouts, key=lambda spec: (spec.checkpointing.mode, spec.train.loss))
    groups = [tuple(group) for _, group in timed]
    by_time = sorted((judge.seconds(group[0]) or 0.0, number) for number, group in enumerate(groups))
    for seconds, number in by_time:
        for spec in groups[number]:
            verdict = strongest if spec is layouts[-1] else judge.verdict(spec)
            if verdict.fits:
                found.take(Candidate(seconds, effort(spec), order, spec, verdict, opening))
            else:
                found.unfit += 1
            if verdict.name == "fits":
                return


def _is_valid(spec: RunSpec, judge: Judge) -> bool:
    return next(judge.errors(spec), None) is None


_RECOMPUTED = ("none", "selective", "full")


def effort(spec: RunSpec) -> tuple[int, ...]:
    """How much a layout does beside training, for the order of those that take the same time or an unknown one."""
    parallel, zero, train = spec.parallel, spec.zero, spec.train
    return (
        (zero.offload_optimizer != "none") + (zero.offload_parameters != "none"),
        _RECOMPUTED.index(spec.checkpointing.mode),
        spec.model_parallel * parallel.expert,
        zero.stage,
        parallel.virtual_pipeline,
        parallel.first_stage_layers is not None,
        parallel.schedule not in ("1f1b", "interleaved"),
        parallel.expert_tensor is not None,
        zero.hpz,
        train.loss != "full",
        train.allocator != "default",
        -spec.micro_batch_size,
    )
