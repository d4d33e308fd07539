"""The search: the best layout of each of the best kinds, exactly, with as few estimates as that takes.

The best has the least time to be expected: its time over the probability that it fits. A heap holds what is not decided
yet, by a bound below that of all layouts in it: first degrees, by the passes of their slowest stage alone; then these
with the way to share out the states, by what that takes at least beside them; then variants, by their time without
memory savings, which only add time; then layouts with some savings, by their time; then judged ones, by the time to be
expected. The smallest is taken and refined, unless what needs least memory of it does not fit. A judged layout that is
taken is the best of its kind, since all that is left is worse, and its kind is done. The search ends with the last kind
that is shown. What is unlikely to fit comes last. The fastest that may not fit is kept apart.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from launcher.estimate.speed.estimate import Chunking
from launcher.planner.candidates import SHOWN, Candidate, Found, effort
from launcher.planner.judge import LayoutJudge
from launcher.planner.keys import SEARCHED, Settings
from launcher.planner.layouts import Kind
from launcher.planner.space import Degrees, Space
from launcher.spec import RunSpec
from launcher.spec.edit import changed_at, reader

_TRIED = 500  # Variants that are looked at for a first result.
_ROUNDING = 1 - 1e-9  # A sum of floating-point numbers in another order may be larger by so little.


_OF_STATES = ("parallel.replicate", "zero.stage", "zero.hpz", "zero.offload_optimizer", "zero.offload_parameters")
"""Keys of what is sharded and offloaded, on which the passes do not depend."""

_OF_PASSES = reader(path for path in SEARCHED if path not in (*_OF_STATES, "backend.reshard_after_forward"))


class _Node(NamedTuple):
    """Something undecided; of equal bounds degrees come first, then variants: a layout that is taken is least."""

    bound: float
    depth: int
    effort: tuple[int, ...]
    order: int
    opening: int
    content: object


class _Sharded(NamedTuple):
    """Degrees and the way to share out the states: variants that differ in the chunks of a pipeline and their order."""

    settings: Settings
    chunkings: tuple[Chunking, ...]  # Their schedules.
    bounds: tuple[float, ...] = ()  # The bound of each; none while it is that of the degrees.


class _Variant(NamedTuple):
    """A variant."""

    run: RunSpec
    has_room: bool  # True if it is known to fit with the strongest savings.
    known: bool = False  # True once its bound is its own seconds without memory savings.


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
        self._room: dict[tuple[object, ...], bool] = {}  # Whether the least of layouts with some settings fits.
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
        elif isinstance(node.content, _Sharded):
            self._refine_sharded(node, node.content)
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
        bound = self._judge.least_seconds(changed_at(variant, space.savings.mildest), space.chunkings(degrees.settings))
        self._push(opening, 0, _ROUNDING * (bound or 0.0), degrees)

    def _open_degrees(self, node: _Node, degrees: Degrees) -> None:
        space, valid = self._spaces[node.opening], 0
        for settings in space.sharded(degrees, self._judge.errors):
            sharded = _Sharded(settings, tuple(space.chunkings(settings)))
            valid += len(sharded.chunkings) * space.savings.size
            self._push(node.opening, 1, node.bound, sharded)
        self.found.invalid += degrees.size - valid

    def _refine_sharded(self, node: _Node, sharded: _Sharded) -> None:
        """Bound the variants better, and open them once nothing may be faster."""
        space, chunkings = self._spaces[node.opening], sharded.chunkings
        schedule, chunks = chunkings[0]
        first = {"parallel.schedule": schedule, "parallel.virtual_pipeline": chunks}
        spec = changed_at(space.base, {**sharded.settings, **first, **space.savings.mildest})
        if self._is_done(node.opening, spec):
            return
        if sharded.bounds:
            self._open_sharded(node, sharded)
            return
        found = self._judge.least_of_schedules(spec, chunkings)
        bounds = tuple(max(node.bound, _ROUNDING * bound) for bound in found or [0.0] * len(chunkings))
        self._push(node.opening, 1, min(bounds), sharded._replace(bounds=bounds))

    def _open_sharded(self, node: _Node, sharded: _Sharded) -> None:
        """Go on with the variants, unless even the layout with the least memory does not fit."""
        space, valid = self._spaces[node.opening], 0
        bounds = dict(zip(sharded.chunkings, sharded.bounds, strict=True))
        for variant in space.staged(sharded.settings, self._judge.errors):
            if not valid and self._is_too_large(node.opening, sharded.settings, variant):
                self.found.unfit += len(sharded.chunkings) * space.savings.size
                return
            has_room = not valid and _is_plain(variant)
            valid += 1
            bound = bounds[variant.parallel.schedule, variant.parallel.virtual_pipeline]
            self._push(node.opening, 2, bound, _Variant(variant, has_room=has_room))
        self.found.invalid += (len(sharded.chunkings) - valid) * space.savings.size

    def _is_too_large(self, opening: int, settings: Settings, variant: RunSpec) -> bool:
        """True if no layout with these settings fits: not even the first variant, of one chunk and 1F1B.

        With micro-batches of one sequence, and more than one of them, it needs no more than with larger ones.
        """
        size, smaller = "train.micro_batch_size", None
        if variant.gradient_accumulation > 1 and settings[size] > 1 and size not in self._spaces[opening].said:
            smaller = {**settings, size: 1}
            if not self._room.get(_key(opening, smaller), True):
                return True
        if self._has_room(opening, settings, variant):
            return False
        if smaller is not None and (least := next(self._spaces[opening].staged(smaller, self._judge.errors), None)):
            self._has_room(opening, smaller, least)  # Its answer is for the sizes between.
        return True

    def _has_room(self, opening: int, settings: Settings, variant: RunSpec) -> bool:
        """True if the first variant of some settings fits with the strongest savings, or is not the plain one."""
        key = _key(opening, settings)
        if key not in self._room:
            strongest = self._strongest(opening, variant)[0] if _is_plain(variant) else None
            self._room[key] = strongest is None or self._fits(strongest)
        return self._room[key]

    def _least(self, opening: int, spec: RunSpec) -> float:
        """A bound by the passes of a run, which do not depend on what is sharded and offloaded."""
        key = opening, *map(repr, _OF_PASSES(spec))
        if key not in self._passes:
            schedule = spec.parallel.schedule, spec.parallel.virtual_pipeline
            self._passes[key] = _ROUNDING * (self._judge.least_seconds(spec, [schedule]) or 0.0)
        return self._passes[key]

    def _refine_variant(self, node: _Node, variant: _Variant) -> None:
        """Bound a variant by its seconds without memory savings, and open it once nothing may be faster."""
        if self._is_done(node.opening, variant.run):
            return
        bound = node.bound
        if not variant.known:
            fastest = changed_at(variant.run, self._spaces[node.opening].savings.mildest)
            bound = max(bound, _ROUNDING * (self._judge.seconds(fastest) or 0.0))
        if bound > node.bound:
            self._push(node.opening, 2, bound, variant._replace(known=True))
        else:
            self._open_variant(node, variant)

    def _open_variant(self, node: _Node, variant: _Variant) -> None:
        """Go on with a variant's layouts, unless the one with the strongest valid savings does not fit."""
        if not variant.has_room:
            size = self._spaces[node.opening].savings.size
            strongest, invalid = self._strongest(node.opening, variant.run)
            if strongest is not None and not self._fits(strongest):
                self.found.invalid += invalid
                self.found.unfit += size - invalid
                return
        self._push(node.opening, 3, node.bound, _Saving(variant.run, 0, 0), effort(variant.run))

    def _strongest(self, opening: int, variant: RunSpec) -> tuple[RunSpec | None, int]:
        """A variant with the strongest valid savings, None where those are invalid; and how many of them are."""
        savings = self._spaces[opening].savings
        strongest = changed_at(variant, savings.strongest)
        if self._is_valid(strongest):
            return strongest, 0
        valid = [at for at in savings.places if self._is_valid(changed_at(variant, savings.at(*at)[-1]))]
        most = max((mode for mode, _ in valid), default=0), max((loss for _, loss in valid), default=0)
        if most not in valid:
            return None, savings.size
        return changed_at(variant, savings.at(*most)[-1]), (len(savings.places) - len(valid)) * len(savings.allocators)

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
            self._push(node.opening, 3, seconds, saving._replace(known=True), node.effort)
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
                self._push(node.opening, 4, likeliest.expected, likeliest, likeliest.effort)
                if known is self.found.best:
                    self.found.note(likeliest)
        if self._is_done(node.opening, variant):
            return
        later = [(mode, loss + 1), *([(mode + 1, 0)] if loss == 0 else [])]
        for mode, loss in later:
            if mode < len(space.savings.modes) and loss < len(space.savings.losses):
                spec = changed_at(variant, space.savings.at(mode, loss)[0])
                bound = max(node.bound, self._least(node.opening, spec))
                self._push(node.opening, 3, bound, _Saving(variant, mode, loss, known=False), effort(spec))

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


def _key(opening: int, settings: Settings) -> tuple[object, ...]:
    return (opening, *map(repr, settings.values()))


def _is_plain(variant: RunSpec) -> bool:
    """True if no other order of the same stages' passes needs less memory."""
    return variant.parallel.schedule == "1f1b" and variant.parallel.virtual_pipeline == 1
