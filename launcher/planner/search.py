"""The search: the fastest layout of each of the best kinds, exactly, with as few estimates as that takes.

A heap holds what is not decided yet, by a bound below the time of all layouts in it: first degrees, by the passes of
their slowest stage alone; then variants, by their time without memory savings, which only add time; then layouts, by
their time. The smallest is taken and refined: degrees into their variants, a variant into its layouts, unless it does
not fit even with the strongest savings. A layout that is taken and fits is the fastest of its kind, since all that is
left is slower, and its kind is done. The search ends with the last kind that is shown.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from launcher.planner.judge import LayoutJudge
from launcher.planner.keys import MODES
from launcher.planner.layouts import Counts, Kind
from launcher.planner.space import Degrees, Space
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec
from launcher.spec.edit import changed_at

SHOWN = 10  # Kinds of layouts that an answer has.

_TRIED = 500  # Variants that are looked at for a first result.
_ROUNDING = 1 - 1e-9  # A sum of floating-point numbers in another order may be larger by so little.


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout that fits; the fastest sorts first, and of equally fast ones the one with the least effort.

    The order is total: :attr:`place` says it, and ends with the hash of the run, so that no two runs are compared.
    """

    seconds: float  # Seconds of a step; 0 where they are unknown.
    effort: tuple[int, ...]  # How much it does beside training.
    order: int  # Its number among those of its search; each process of a search counts for itself.
    opening: int  # The number of its engine's opening.
    spec: RunSpec  # The run.
    verdict: Verdict  # The verdict on its memory.

    @property
    def place(self) -> tuple[float, tuple[int, ...], int, int, str]:
        """The sort key."""
        return (self.seconds, self.effort, self.order, self.opening, self.spec.hash)

    def __lt__(self, other: Candidate) -> bool:
        return self.place < other.place


@dataclass(slots=True)
class Found:
    """The results of a search so far."""

    best: dict[Kind, Candidate] = field(default_factory=dict)  # The fastest layout of each kind that fits.
    # The fastest of each that fits within the estimate's error alone.
    tight: dict[Kind, Candidate] = field(default_factory=dict)
    early: Candidate | None = None  # A layout that fits, found at once; there may be faster ones.
    considered: int = 0  # Layouts.
    invalid: int = 0  # Those of them that are refused.
    unfit: int = 0  # Those that do not fit.
    judged: int = 0  # Estimates of memory that were made.

    @property
    def first(self) -> Candidate | None:
        """The fastest so far."""
        return min([*self.best.values(), *([self.early] if self.early else [])], default=None)

    def shown(self) -> list[Candidate]:
        """The best of each kind, the fastest first; tight ones only where nothing fits for certain."""
        return sorted((self.best or self.tight).values())[:SHOWN]

    def others(self) -> list[Candidate]:
        """The fastest of each engine that has none among the shown."""
        fastest: dict[str, Candidate] = {}
        for each in sorted(self.best.values()):
            fastest.setdefault(each.spec.backend.name, each)
        shown = {each.spec.backend.name for each in self.shown()}
        return [each for engine, each in fastest.items() if engine not in shown]

    def merge(self, other: Found) -> None:
        """Take over the results of a search of other degrees."""
        for own, theirs in ((self.best, other.best), (self.tight, other.tight)):
            for kind, candidate in theirs.items():
                own[kind] = min(candidate, own.get(kind, candidate))
        self.considered += other.considered
        self.invalid += other.invalid
        self.unfit += other.unfit
        self.judged += other.judged

    def counts(self) -> Counts:
        """The layouts by what became of them."""
        slower = self.considered - self.invalid - self.unfit - len(self.tight)
        return Counts(
            considered=self.considered, invalid=self.invalid, unfit=self.unfit, tight=len(self.tight), slower=slower
        )


class _Node(NamedTuple):
    """Something undecided; of equal bounds degrees come first, then variants: a layout that is taken is least."""

    bound: float
    depth: int
    effort: tuple[int, ...]
    order: int
    opening: int
    content: object


class _Saving(NamedTuple):
    """Layouts of a variant that take the same time, since they differ in the allocator alone."""

    variant: RunSpec  # The variant.
    mode: int  # The place of its activation checkpointing among the space's.
    loss: int  # The place of its loss.


type OpenedDegrees = tuple[int, Degrees]
"""Degrees, with the number of their opening."""


class Search:
    """One search over the spaces of several engines."""

    def __init__(self, spaces: Sequence[Space], judge: LayoutJudge) -> None:
        self.found = Found()
        self._spaces, self._judge = spaces, judge
        self._heap: list[_Node] = []
        self._order = 0

    def run(self, opened: Sequence[OpenedDegrees]) -> Iterator[Found]:
        """Search some degrees; the results so far come after each step, and the whole answer last."""
        for opening, degrees in opened:
            self._add_degrees(opening, degrees)
            yield self.found
        self._look_for_one()
        yield self.found
        while self._heap and len(self.found.best) < SHOWN:
            self._take(heapq.heappop(self._heap))
            yield self.found
        yield from self._of_the_others()

    def _look_for_one(self) -> None:
        """Look for any layout that fits, among the fastest degrees with micro-batches of one sequence."""
        for opening, variant in islice(self._small_variants(), _TRIED):
            spec = changed_at(variant, self._spaces[opening].savings.strongest)
            if not self._is_valid(spec):
                continue
            verdict = self._judge.verdict(spec)
            if verdict.name == "fits":
                seconds = self._judge.seconds(spec) or 0.0
                self.found.early = Candidate(seconds, effort(spec), 0, opening, spec, verdict)
                return

    def _small_variants(self) -> Iterator[tuple[int, RunSpec]]:
        for node in sorted(self._heap):
            degrees = node.content
            if isinstance(degrees, Degrees) and degrees.settings["train.micro_batch_size"] == 1:
                yield from (
                    (node.opening, variant)
                    for variant in self._spaces[node.opening].variants(degrees, self._judge.errors)
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
        if isinstance(node.content, Degrees):
            self._open_degrees(node, node.content)
        elif isinstance(node.content, RunSpec):
            self._open_variant(node, node.content)
        elif isinstance(node.content, _Saving):
            self._judge_saving(node, node.content)

    def _push(self, opening: int, depth: int, bound: float, content: object, effort: tuple[int, ...] = ()) -> None:
        self._order += 1
        heapq.heappush(self._heap, _Node(bound, depth, effort, self._order, opening, content))

    def _add_degrees(self, opening: int, degrees: Degrees) -> None:
        self.found.considered += degrees.size
        space = self._spaces[opening]
        variant = next(space.variants(degrees, self._judge.errors), None)
        if variant is None:
            self.found.invalid += degrees.size
            return
        bound = self._judge.least_seconds(changed_at(variant, space.savings.mildest), space.chunkings(degrees))
        self._push(opening, 0, _ROUNDING * (bound or 0.0), degrees)

    def _open_degrees(self, node: _Node, degrees: Degrees) -> None:
        space, valid = self._spaces[node.opening], 0
        for variant in space.variants(degrees, self._judge.errors):
            valid += 1
            if Kind.of(variant) not in self.found.best:
                fastest = changed_at(variant, space.savings.mildest)
                self._push(node.opening, 1, _ROUNDING * (self._judge.seconds(fastest) or 0.0), variant)
        self.found.invalid += degrees.size - valid * space.savings.size

    def _open_variant(self, node: _Node, variant: RunSpec) -> None:
        if Kind.of(variant) in self.found.best:
            return
        space = self._spaces[node.opening]
        strongest = changed_at(variant, space.savings.strongest)
        if self._is_valid(strongest) and not self._fits(strongest):
            self.found.unfit += space.savings.size
            return
        self._push(node.opening, 2, node.bound, _Saving(variant, 0, 0), effort(variant))

    def _is_valid(self, spec: RunSpec) -> bool:
        return next(self._judge.errors(spec), None) is None

    def _fits(self, spec: RunSpec) -> bool:
        self.found.judged += 1
        return self._judge.verdict(spec).may_start

    def _judge_saving(self, node: _Node, saving: _Saving) -> None:
        """Judge the layouts with some savings; where none fits, go on with those that save more and take longer."""
        kind = Kind.of(saving.variant)
        if kind in self.found.best or self._take_fitting(node, saving, kind):
            return
        space, (variant, mode, loss) = self._spaces[node.opening], saving
        further = [_Saving(variant, mode, loss + 1), *([_Saving(variant, mode + 1, 0)] if loss == 0 else [])]
        for each in further:
            if each.mode < len(space.savings.modes) and each.loss < len(space.savings.losses):
                spec = changed_at(variant, space.savings.at(each.mode, each.loss)[0])
                self._push(node.opening, 2, self._judge.seconds(spec) or 0.0, each, effort(spec))

    def _take_fitting(self, node: _Node, saving: _Saving, kind: Kind) -> bool:
        """Take the layout with some savings that fits and does least; False where none fits for certain."""
        fitting: Candidate | None = None
        layouts = self._spaces[node.opening].savings.at(saving.mode, saving.loss)
        for left, settings in reversed(list(enumerate(layouts, 1))):
            spec = changed_at(saving.variant, settings)
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
                self.found.tight.setdefault(kind, candidate)
        if fitting is not None:
            self.found.best[kind] = fitting
        return fitting is not None


def effort(spec: RunSpec) -> tuple[int, ...]:
    """The effort of a layout beside training, for sorting layouts of the same or of unknown time."""
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
