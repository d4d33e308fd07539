"""The search: the best layout of each of the best kinds, exactly, with as few estimates as that takes.

The best has the least time to be expected: its time over the probability that it fits. A heap holds what is not decided
yet, by a bound below that of all layouts in it: first degrees, by the passes of their slowest stage alone; then
variants, by their time without memory savings, which only add time; then layouts with some savings, by their time; then
judged ones, by the time to be expected. The smallest is taken and refined: degrees into their variants, a variant into
its layouts, unless it does not fit even with the strongest savings. A judged layout that is taken is the best of its
kind, since all that is left is worse, and its kind is done. The search ends with the last kind that is shown. What is
less likely to fit than not comes last. The fastest that may not fit is kept apart.
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
_LIKELY = 0.5  # The probability from which on a layout is as likely to fit as not.
_LAST = 1e30  # Times the time to be expected of what is less likely, so that all others stand before it.
_ROUNDING = 1 - 1e-9  # A sum of floating-point numbers in another order may be larger by so little.


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout that may fit; the least time to be expected sorts first, and of equal ones the least effort.

    The order is total: :attr:`place` says it, and ends with the hash of the run, so that no two runs are compared.
    """

    seconds: float  # Seconds of a step; 0 where they are unknown.
    effort: tuple[int, ...]  # How much it does beside training.
    order: int  # Its number among those of its search; each process of a search counts for itself.
    opening: int  # The number of its engine's opening.
    spec: RunSpec  # The run.
    verdict: Verdict  # The verdict on its memory.

    @property
    def place(self) -> tuple[float, float, tuple[int, ...], int, int, str]:
        """The sort key."""
        return (self.expected, self.seconds, self.effort, self.order, self.opening, self.spec.hash)

    @property
    def expected(self) -> float:
        """Seconds over the probability that it fits, of unknown seconds as if they were one; the unlikely are last."""
        return (self.seconds or 1.0) / self.verdict.chance * (1.0 if self.is_likely else _LAST)

    @property
    def is_likely(self) -> bool:
        """True if it is more likely to fit than not."""
        return self.verdict.chance >= _LIKELY

    def __lt__(self, other: Candidate) -> bool:
        return self.place < other.place


@dataclass(slots=True)
class Found:
    """The results of a search so far."""

    best: dict[Kind, Candidate] = field(default_factory=dict)  # The best layout of each kind.
    edge: Candidate | None = None  # The fastest that may not fit.
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
        """The best of each kind, the best first; those that are unlikely to fit only where all are."""
        return self._likely()[:SHOWN]

    def _likely(self) -> list[Candidate]:
        found = sorted(self.best.values())
        return [each for each in found if each.is_likely] or found

    def faster(self) -> Candidate | None:
        """The fastest that may not fit, where it is faster than the best."""
        first = min(self.best.values(), default=None)
        return self.edge if self.edge and first and self.edge.seconds < first.seconds else None

    def note(self, candidate: Candidate) -> None:
        """Keep a layout that may not fit, if it is the fastest of those."""
        self.edge = min(candidate, self.edge or candidate, key=_by_seconds)

    def others(self) -> list[Candidate]:
        """The fastest of each engine that has none among the shown."""
        fastest: dict[str, Candidate] = {}
        for each in self._likely():
            fastest.setdefault(each.spec.backend.name, each)
        shown = {each.spec.backend.name for each in self.shown()}
        return [each for engine, each in fastest.items() if engine not in shown]

    def merge(self, other: Found) -> None:
        """Take over the results of a search of other degrees."""
        for kind, candidate in other.best.items():
            self.best[kind] = min(candidate, self.best.get(kind, candidate))
        if other.edge is not None:
            self.note(other.edge)
        self.considered += other.considered
        self.invalid += other.invalid
        self.unfit += other.unfit
        self.judged += other.judged

    def counts(self) -> Counts:
        """The layouts by what became of them."""
        slower = self.considered - self.invalid - self.unfit
        return Counts(considered=self.considered, invalid=self.invalid, unfit=self.unfit, slower=slower)


def _by_seconds(candidate: Candidate) -> tuple[object, ...]:
    return (candidate.seconds, *candidate.place)


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
        elif isinstance(node.content, Candidate):
            self.found.best.setdefault(Kind.of(node.content.spec), node.content)

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
        """Judge the layouts with some savings; where none fits for certain, go on with those that save more."""
        kind = Kind.of(saving.variant)
        if kind in self.found.best:
            return
        likeliest = self._likeliest(node, saving)
        if likeliest is not None and likeliest.verdict.chance == 1:
            self.found.best[kind] = likeliest
            return
        if likeliest is not None:
            self.found.note(likeliest)
            self._push(node.opening, 3, likeliest.expected, likeliest, likeliest.effort)
        space, (variant, mode, loss) = self._spaces[node.opening], saving
        further = [_Saving(variant, mode, loss + 1), *([_Saving(variant, mode + 1, 0)] if loss == 0 else [])]
        for each in further:
            if each.mode < len(space.savings.modes) and each.loss < len(space.savings.losses):
                spec = changed_at(variant, space.savings.at(each.mode, each.loss)[0])
                self._push(node.opening, 2, self._judge.seconds(spec) or 0.0, each, effort(spec))

    def _likeliest(self, node: _Node, saving: _Saving) -> Candidate | None:
        """Of the layouts with some savings, which take the same time, the likeliest to fit and of least effort."""
        likeliest: Candidate | None = None
        layouts = self._spaces[node.opening].savings.at(saving.mode, saving.loss)
        for left, settings in reversed(list(enumerate(layouts, 1))):
            spec = changed_at(saving.variant, settings)
            if not self._is_valid(spec):
                self.found.invalid += 1
                continue
            self.found.judged += 1
            verdict = self._judge.verdict(spec)
            if not verdict.fits or not verdict.chance:
                self.found.unfit += left  # Those that save less fit no better.
                break
            if likeliest is None or verdict.chance >= likeliest.verdict.chance:
                likeliest = Candidate(node.bound, effort(spec), node.order, node.opening, spec, verdict)
        return likeliest


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
