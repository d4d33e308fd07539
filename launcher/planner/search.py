"""The search: the best layout of each of the best kinds, exactly, with as few estimates as that takes.

The best has the least time to be expected: its time over the probability that it fits. A heap holds what is not decided
yet, by a bound below that of all layouts in it: first degrees, by the passes of their slowest stage alone; then
variants, by their time without memory savings, which only add time; then layouts with some savings, by their time; then
judged ones, by the time to be expected. The smallest is taken and refined: degrees into their variants, a variant into
its layouts, unless it does not fit even with the strongest savings. A judged layout that is taken is the best of its
kind, since all that is left is worse, and its kind is done. The search ends with the last kind that is shown. What is
unlikely to fit comes last. The fastest that may not fit is kept apart.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from launcher.planner.judge import LayoutJudge
from launcher.planner.keys import MODES, SEARCHED
from launcher.planner.layouts import Counts, Kind
from launcher.planner.space import Degrees, Space
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec
from launcher.spec.edit import changed_at, reader

SHOWN = 10  # Kinds of layouts that an answer has.

_TRIED = 500  # Variants that are looked at for a first result.
_LIKELY = 0.75  # Of what fits with less than three chances of four nobody wants to hear first, however fast it is.
_LAST = 1e30  # Times the time to be expected of what is less likely, so that all others stand before it.
_ROUNDING = 1 - 1e-9  # A sum of floating-point numbers in another order may be larger by so little.


_OF_STATES = ("parallel.replicate", "zero.stage", "zero.hpz", "zero.offload_optimizer", "zero.offload_parameters")
"""Keys of what is sharded and offloaded, on which the passes do not depend."""

_OF_LAYOUT = reader(SEARCHED)
_OF_PASSES = reader(path for path in SEARCHED if path not in (*_OF_STATES, "backend.reshard_after_forward"))

_KNOWN = 2  # The bound of a variant that is its own seconds.


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
        """True if it is likely enough to fit to be proposed beside those that do."""
        return self.verdict.chance >= _LIKELY

    def __lt__(self, other: Candidate) -> bool:
        return self.place < other.place


@dataclass(slots=True)
class Found:
    """The results of a search so far."""

    best: dict[Kind, Candidate] = field(default_factory=dict)  # The best layout of each kind.
    untried: dict[Kind, Candidate] = field(default_factory=dict)  # The same of those whose mode nothing measured backs.
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
        """The best of each kind, the best first; those that are unlikely to fit only where all are.

        Those whose mode nothing measured backs stand behind.
        """
        return self._likely()[:SHOWN]

    def _likely(self) -> list[Candidate]:
        found = [*sorted(self.best.values()), *sorted(self.untried.values())]
        return [each for each in found if each.is_likely] or found

    def promising(self) -> Candidate | None:
        """The best whose mode nothing measured backs, where it promises more than the first."""
        found, first = min(self.untried.values(), default=None), min(self.best.values(), default=None)
        return found if found and first and found < first else None

    def faster(self) -> Candidate | None:
        """The fastest that may not fit, where it is faster than the best."""
        first = next(iter(self.shown()), None)
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
        for own, theirs in ((self.best, other.best), (self.untried, other.untried)):
            for kind, candidate in theirs.items():
                own[kind] = min(candidate, own.get(kind, candidate))
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


class _Variant(NamedTuple):
    """A variant, and how its bound was found: 0 by its passes, 1 by a milder variant, 2 by its own seconds."""

    run: RunSpec
    known: int


class _Saving(NamedTuple):
    """Layouts of a variant that take the same time, since they differ in the allocator alone."""

    variant: RunSpec  # The variant.
    mode: int  # The place of its activation checkpointing among the space's.
    loss: int  # The place of its loss.
    known: bool = True  # False while the bound is that of its passes.


type OpenedDegrees = tuple[int, Degrees]
"""Degrees, with the number of their opening."""


class Search:
    """One search over the spaces of several engines."""

    def __init__(self, spaces: Sequence[Space], judge: LayoutJudge, *, certain: bool = False) -> None:
        """``certain`` is true to take only layouts of which the whole error band fits."""
        self.found, self._certain = Found(), certain
        self._spaces, self._judge = spaces, judge
        self._said = [frozenset(judge.behind(space.base)) for space in spaces]
        self._heap: list[_Node] = []
        self._passes: dict[tuple[object, ...], float] = {}  # Bounds by the passes, of runs that share them.
        self._seconds: dict[tuple[object, ...], float] = {}  # Seconds of variants without memory savings.
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
            have = self._engines()
            missing = [space.base.backend.name not in have for space in self._spaces]
            self._heap = [node for node in self._heap if missing[node.opening]]
            heapq.heapify(self._heap)
            while self._heap and have == self._engines():
                self._take(heapq.heappop(self._heap))
                yield self.found

    def _engines(self) -> set[str]:
        return {each.spec.backend.name for each in (*self.found.best.values(), *self.found.untried.values())}

    def _known(self, opening: int, spec: RunSpec) -> dict[Kind, Candidate]:
        """The results to which a layout belongs: without evidence is what chooses a part that has none."""
        return self.found.untried if set(self._judge.behind(spec)) - self._said[opening] else self.found.best

    def _is_done(self, opening: int, variant: RunSpec) -> bool:
        """True if the best layout of a variant's kind is known."""
        kind, savings = Kind.of(variant), self._spaces[opening].savings
        if kind in self.found.best or kind not in self.found.untried:
            return kind in self.found.best
        runs = (changed_at(variant, savings.at(*place)[0]) for place in savings.places)
        return all(self._known(opening, run) is self.found.untried for run in runs)

    def _take(self, node: _Node) -> None:
        if isinstance(node.content, Degrees):
            self._open_degrees(node, node.content)
        elif isinstance(node.content, _Variant):
            self._refine_variant(node, node.content)
        elif isinstance(node.content, _Saving):
            self._refine_saving(node, node.content)
        elif isinstance(node.content, Candidate):
            self._known(node.opening, node.content.spec).setdefault(Kind.of(node.content.spec), node.content)

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
            if not self._is_done(node.opening, variant):
                fastest = changed_at(variant, space.savings.mildest)
                self._push(node.opening, 1, max(node.bound, self._least(node.opening, fastest)), _Variant(variant, 0))
        self.found.invalid += degrees.size - valid * space.savings.size

    def _least(self, opening: int, spec: RunSpec) -> float:
        """A bound by the passes of a run, which do not depend on what is sharded and offloaded."""
        key = opening, *map(repr, _OF_PASSES(spec))
        if key not in self._passes:
            schedule = spec.parallel.schedule, spec.parallel.virtual_pipeline
            self._passes[key] = _ROUNDING * (self._judge.least_seconds(spec, [schedule]) or 0.0)
        return self._passes[key]

    def _of_variant(self, opening: int, variant: RunSpec) -> float:
        """A bound by the seconds without memory savings."""
        key = opening, *map(repr, _OF_LAYOUT(variant))
        if key not in self._seconds:
            fastest = changed_at(variant, self._spaces[opening].savings.mildest)
            self._seconds[key] = _ROUNDING * (self._judge.seconds(fastest) or 0.0)
        return self._seconds[key]

    def _refine_variant(self, node: _Node, variant: _Variant) -> None:
        """Bound a variant better, as long as that may be of use, and open it then."""
        if self._is_done(node.opening, variant.run):
            return
        bound, known = node.bound, variant.known
        while known < _KNOWN and bound <= node.bound:
            milder = self._spaces[node.opening].milder(variant.run) if known == 0 else variant.run
            bound, known = max(bound, 0.0 if milder is None else self._of_variant(node.opening, milder)), known + 1
        if bound > node.bound:
            self._push(node.opening, 1, bound, _Variant(variant.run, known))
        else:
            self._open_variant(node, variant.run)

    def _open_variant(self, node: _Node, variant: RunSpec) -> None:
        """Go on with a variant's layouts, unless the one with the strongest valid savings does not fit."""
        savings = self._spaces[node.opening].savings
        strongest, invalid = changed_at(variant, savings.strongest), 0
        if not self._is_valid(strongest):
            valid = [at for at in savings.places if self._is_valid(changed_at(variant, savings.at(*at)[-1]))]
            most = max((mode for mode, _ in valid), default=0), max((loss for _, loss in valid), default=0)
            strongest = changed_at(variant, savings.at(*most)[-1])
            invalid = (len(savings.places) - len(valid)) * len(savings.allocators) if most in valid else savings.size
        if invalid < savings.size and not self._fits(strongest):
            self.found.invalid += invalid
            self.found.unfit += savings.size - invalid
            return
        self._push(node.opening, 2, node.bound, _Saving(variant, 0, 0), effort(variant))

    def _is_valid(self, spec: RunSpec) -> bool:
        return next(self._judge.errors(spec), None) is None

    def _fits(self, spec: RunSpec) -> bool:
        self.found.judged += 1
        return self._judge.verdict(spec).may_start

    def _refine_saving(self, node: _Node, saving: _Saving) -> None:
        """Bound layouts by their seconds, and judge them once nothing undecided may be faster."""
        if self._is_done(node.opening, saving.variant):
            return
        seconds = node.bound
        if not saving.known:
            settings = self._spaces[node.opening].savings.at(saving.mode, saving.loss)[0]
            seconds = max(seconds, self._judge.seconds(changed_at(saving.variant, settings)) or 0.0)
        if seconds > node.bound:
            self._push(node.opening, 2, seconds, saving._replace(known=True), node.effort)
        else:
            self._judge_saving(node, saving)

    def _judge_saving(self, node: _Node, saving: _Saving) -> None:
        """Judge the layouts with some savings; where none fits for certain, go on with those that save more."""
        space, (variant, mode, loss, _) = self._spaces[node.opening], saving
        kind, known = Kind.of(variant), self._known(node.opening, changed_at(variant, space.savings.at(mode, loss)[0]))
        if kind not in known and kind not in self.found.best:
            likeliest = self._likeliest(node, saving)
            if likeliest is not None and likeliest.verdict.chance == 1:
                known[kind] = likeliest
            elif likeliest is not None:
                self._push(node.opening, 3, likeliest.expected, likeliest, likeliest.effort)
                if known is self.found.best:
                    self.found.note(likeliest)
        if self._is_done(node.opening, variant):
            return
        later = [(mode, loss + 1), *([(mode + 1, 0)] if loss == 0 else [])]
        for mode, loss in later:
            if mode < len(space.savings.modes) and loss < len(space.savings.losses):
                spec = changed_at(variant, space.savings.at(mode, loss)[0])
                bound = max(node.bound, self._least(node.opening, spec))
                self._push(node.opening, 2, bound, _Saving(variant, mode, loss, known=False), effort(spec))

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
            if not verdict.fits or not verdict.chance or (self._certain and verdict.name != "fits"):
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
