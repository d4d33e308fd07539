"""The search: the exact best layout of each of the best kinds, by branch and bound with as few estimates as possible.

The best layout has the least expected time: its time divided by the probability that it fits. A heap orders undecided
nodes by a lower bound on the time of all layouts in them: first degrees, by the passes of their slowest stage; then
degrees with a way to shard the states, by the least time that this adds; then layouts with memory savings, by their
time, starting from the least savings with which they may fit, since more only add time; then judged layouts, by their
expected time. The smallest node is popped and refined, unless even its layout with the least memory does not fit. A
judged layout that is popped is the best of its kind, since everything left is worse, and its kind is done. The search
ends with the last kind to show. Layouts unlikely to fit come last. The fastest that may not fit is kept separately.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from launcher.estimate.speed.estimate import Chunking
from launcher.planner.candidates import SHOWN, Candidate, Found, effort
from launcher.planner.judge import Preflight
from launcher.planner.keys import MemorySavings, Settings
from launcher.planner.layouts import Kind
from launcher.planner.space import Degrees, Space
from launcher.spec import RunSpec
from launcher.spec.edit import changed_at

_TRIED = 500  # Variants tried for a quick first result.
_ROUNDING = 1 - 1e-9  # Keeps a bound below the time although floating-point sums depend on their order.


class _Node(NamedTuple):
    """An undecided node of the search; at equal bounds degrees come first, and judged layouts last."""

    bound: float
    depth: int
    effort: tuple[int, ...]
    order: int
    opening: int
    content: object


class _Sharded(NamedTuple):
    """Degrees with a way to shard the states: variants that differ in pipeline chunks and schedule."""

    settings: Settings
    chunkings: tuple[Chunking, ...]  # Their schedules.
    mode: int  # Index of the activation checkpointing below which none of them fits.
    bounds: tuple[float, ...] = ()  # The bound of each; empty while the bound of the degrees is used.
    known: bool = False  # True once one of them is known to fit with that mode.


class _Saving(NamedTuple):
    """Layouts of a variant that take the same time, because they differ only in the allocator."""

    variant: RunSpec  # The variant.
    mode: int  # Index of its activation checkpointing in the space.
    loss: int  # Index of its loss.
    known: bool = False  # True once the bound is their own seconds.
    has_room: bool = True  # False while the variant with the strongest savings may not fit.


type OpenedDegrees = tuple[int, Degrees]
"""Degrees, preceded by the number of their opening."""


class Search:
    """One search over the spaces of several engines."""

    def __init__(self, spaces: Sequence[Space], judge: Preflight, *, certain: bool = False) -> None:
        """``certain`` is true to accept only layouts whose whole error band fits."""
        self.found, self._certain = Found(), certain
        self._spaces, self._judge = spaces, judge
        self._said = [frozenset(judge.behind(space.base)) for space in spaces]
        self._heap: list[_Node] = []
        # The least checkpointing with which the smallest layout fits, by settings and micro-batch; None if none does.
        self._modes = defaultdict[tuple[object, ...], dict[int, int | None]](dict)
        self._order = 0

    def run(self, opened: Sequence[OpenedDegrees]) -> Iterator[Found]:
        """Search some degrees; yields the results so far after each step, and finally all of them."""
        for opening, degrees in opened:
            self._add_degrees(opening, degrees)
            yield self.found
        self._find_early()
        yield self.found
        while self._heap and len(self.found.best) < SHOWN:
            self._expand(heapq.heappop(self._heap))
            yield self.found
        yield from self._search_other_engines()

    def _find_early(self) -> None:
        """Find any layout that fits, among the fastest degrees with micro-batches of one sequence."""
        smallest = (
            (node.opening, variant)
            for node in sorted(self._heap)
            if isinstance(node.content, Degrees) and node.content.settings["train.micro_batch_size"] == 1
            for variant in self._spaces[node.opening].variants(node.content, self._judge.errors)
        )
        for opening, variant in islice(smallest, _TRIED):
            spec = changed_at(variant, self._spaces[opening].savings.at(-1, -1)[-1])
            if self._is_valid(spec) and (verdict := self._judge.verdict(spec)).name == "fits":
                seconds = self._judge.seconds(spec) or 0.0
                self.found.early = Candidate(seconds, effort(spec), 0, opening, spec, verdict)
                return

    def _search_other_engines(self) -> Iterator[Found]:
        """Continue until every engine has a measured layout that fits, or is known to have none."""
        while self._heap:
            have = self._engines()
            missing = [space.base.backend.name not in have for space in self._spaces]
            self._heap = [node for node in self._heap if missing[node.opening]]
            heapq.heapify(self._heap)
            while self._heap and have == self._engines():
                self._expand(heapq.heappop(self._heap))
                yield self.found

    def _engines(self) -> set[str]:
        return {each.spec.backend.name for each in self.found.best.values()}

    def _results_for(self, opening: int, spec: RunSpec) -> dict[Kind, Candidate]:
        """The results that a layout belongs to: ``untried`` if the search chose a part that no measurement backs."""
        return self.found.untried if set(self._judge.behind(spec)) - self._said[opening] else self.found.best

    def _is_done(self, opening: int, variant: RunSpec) -> bool:
        kind, savings = Kind.of(variant), self._spaces[opening].savings
        if kind in self.found.best or kind not in self.found.untried:
            return kind in self.found.best
        runs = (changed_at(variant, savings.at(*place)[0]) for place in savings.places)
        return all(self._results_for(opening, run) is self.found.untried for run in runs)

    def _expand(self, node: _Node) -> None:
        if isinstance(node.content, Degrees):
            self._open_degrees(node, node.content)
        elif isinstance(node.content, _Sharded):
            self._tighten_sharded(node, node.content)
        elif isinstance(node.content, _Saving):
            self._tighten_saving(node, node.content)
        elif isinstance(node.content, Candidate):
            self._results_for(node.opening, node.content.spec).setdefault(Kind.of(node.content.spec), node.content)

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
        fastest = changed_at(variant, space.savings.at(0, 0)[0])
        bound = self._judge.least_seconds(fastest, space.chunkings(degrees.settings))
        self._push(opening, 0, _ROUNDING * (bound or 0.0), degrees)

    def _open_degrees(self, node: _Node, degrees: Degrees) -> None:
        """Push each way to shard the states, with the least checkpointing that may fit."""
        space, valid = self._spaces[node.opening], 0
        ways = sorted(space.sharded(degrees, self._judge.errors), key=_needs_more)
        bounds: dict[int, tuple[int | None, float]] = {}
        for settings in ways:
            chunkings, stage = tuple(space.chunkings(settings)), settings["zero.stage"]
            valid += len(chunkings) * space.savings.size
            if stage not in bounds:
                bounds[stage] = self._bound(node, settings)
            mode, bound = bounds[stage]
            if mode is None:
                self.found.unfit += len(chunkings) * space.savings.size
            else:
                self._push(node.opening, 1, bound, _Sharded(settings, chunkings, mode))
        self.found.invalid += degrees.size - valid

    def _bound(self, node: _Node, settings: Settings) -> tuple[int | None, float]:
        """The least activation checkpointing with which some settings may fit, and the bound by the passes with it."""
        space, mode = self._spaces[node.opening], self._least_mode(node.opening, settings)
        if not mode:
            return mode, node.bound
        spec = self._first(node.opening, settings, mode)
        return mode, max(node.bound, _ROUNDING * (self._judge.least_seconds(spec, space.chunkings(settings)) or 0.0))

    def _first(self, opening: int, settings: Settings, mode: int) -> RunSpec:
        """The first variant of some settings, valid or not, with an activation checkpointing and no other savings."""
        space = self._spaces[opening]
        schedule, chunks = space.chunkings(settings)[0]
        first = {"parallel.schedule": schedule, "parallel.virtual_pipeline": chunks}
        return changed_at(space.base, {**settings, **first, **space.savings.at(mode, 0)[0]})

    def _tighten_sharded(self, node: _Node, sharded: _Sharded) -> None:
        """Tighten the bounds of the variants, and open them once nothing else may be faster."""
        settings, chunkings, least, bounds, known = sharded
        if self._is_done(node.opening, spec := self._first(node.opening, settings, least)):
            return
        if bounds and not known:
            mode = self._least_mode(node.opening, settings, least)
            if mode is None:
                self.found.unfit += len(chunkings) * self._spaces[node.opening].savings.size
                return
            known, sharded = mode == least, sharded._replace(mode=mode, known=True)
            spec = self._first(node.opening, settings, mode)
        if known:
            self._open_sharded(node, sharded)
            return
        found = self._judge.least_of_schedules(spec, chunkings)
        bounds = tuple(max(node.bound, _ROUNDING * bound) for bound in found or [0.0] * len(chunkings))
        self._push(node.opening, 1, min(bounds), sharded._replace(bounds=bounds))

    def _open_sharded(self, node: _Node, sharded: _Sharded) -> None:
        space, (settings, chunkings, mode, bounds, _), valid = self._spaces[node.opening], sharded, 0
        bound = dict(zip(chunkings, bounds, strict=True))
        for variant in space.staged(settings, self._judge.errors):
            has_room = not valid and _is_plain(variant)
            valid += 1
            least = bound[variant.parallel.schedule, variant.parallel.virtual_pipeline]
            self._push(node.opening, 2, least, _Saving(variant, mode, 0, has_room=has_room), effort(variant))
        self.found.invalid += (len(chunkings) - valid) * space.savings.size

    def _least_mode(self, opening: int, settings: Settings, start: int = 0) -> int | None:
        """The least activation checkpointing, from ``start`` on, with which some settings may fit; None if none does.

        It is that of the first variant, with one chunk and 1F1B, which needs the least memory; with several
        micro-batches it is at least that of smaller ones.
        """
        space, size = self._spaces[opening], "train.micro_batch_size"
        variant = next(space.staged(settings, self._judge.errors), None)
        if variant is None or not _is_plain(variant):
            return start
        modes, own = self._modes[opening, *map(repr, {**settings, size: None}.values())], settings[size]
        if variant.gradient_accumulation > 1 and size not in space.said:
            smaller = [mode for other, mode in modes.items() if other < own]
            if None in smaller:
                return None
            start = max([start, *filter(None, smaller)])
        if own not in modes:
            tried = range(start, len(space.savings.modes))
            runs = ((mode, strongest(variant, space.savings, [mode], self._judge)) for mode in tried)
            modes[own] = next((mode for mode, run in runs if run is None or self._fits(run)), None)
        return modes[own]

    def _is_valid(self, spec: RunSpec) -> bool:
        return next(self._judge.errors(spec), None) is None

    def _fits(self, spec: RunSpec) -> bool:
        return self._judge.verdict(spec).may_start

    def _tighten_saving(self, node: _Node, saving: _Saving) -> None:
        """Bound layouts by their own seconds, and judge them once nothing undecided may be faster."""
        if self._is_done(node.opening, saving.variant):
            return
        seconds = node.bound
        if not saving.known:
            settings = self._spaces[node.opening].savings.at(saving.mode, saving.loss)[0]
            seconds = max(seconds, self._judge.seconds(changed_at(saving.variant, settings)) or 0.0)
        if seconds > node.bound:
            self._push(node.opening, 3, seconds, saving._replace(known=True), node.effort)
        elif saving.has_room or self._may_fit(node.opening, saving):
            self._judge_saving(node, saving)

    def _may_fit(self, opening: int, saving: _Saving) -> bool:
        """True if a variant may fit with the strongest valid savings; otherwise counts its layouts."""
        savings = self._spaces[opening].savings
        run = strongest(saving.variant, savings, reversed(range(saving.mode, len(savings.modes))), self._judge)
        if run is None:
            self.found.invalid += savings.size
        elif not self._fits(run):
            self.found.unfit += savings.size
        else:
            return True
        return False

    def _judge_saving(self, node: _Node, saving: _Saving) -> None:
        """Judge the layouts with some savings; if none fits for certain, push those that save more."""
        space, (variant, mode, loss, *_) = self._spaces[node.opening], saving
        kind, run = Kind.of(variant), changed_at(variant, space.savings.at(mode, loss)[0])
        known = self._results_for(node.opening, run)
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
                self._push(node.opening, 3, node.bound, _Saving(variant, mode, loss), effort(spec))

    def _likeliest(self, node: _Node, saving: _Saving) -> Candidate | None:
        """The layout most likely to fit, then of least effort, among those with the same savings and time."""
        likeliest: Candidate | None = None
        layouts = self._spaces[node.opening].savings.at(saving.mode, saving.loss)
        for left, settings in reversed(list(enumerate(layouts, 1))):
            spec = changed_at(saving.variant, settings)
            if not self._is_valid(spec):
                self.found.invalid += 1
                continue
            verdict = self._judge.verdict(spec)
            if not verdict.fits or not verdict.chance or (self._certain and verdict.name != "fits"):
                self.found.unfit += left  # Layouts that save less do not fit either.
                break
            if likeliest is None or verdict.chance >= likeliest.verdict.chance:
                likeliest = Candidate(node.bound, effort(spec), node.order, node.opening, spec, verdict)
        return likeliest


def strongest(variant: RunSpec, savings: MemorySavings, modes: Iterable[int], judge: Preflight) -> RunSpec | None:
    """A variant with the first of ``modes`` and the strongest other savings that are valid; None if none are."""
    places = ((mode, loss) for mode in modes for loss in reversed(range(len(savings.losses))))
    runs = (changed_at(variant, settings) for place in places for settings in reversed(savings.at(*place)))
    return next((run for run in runs if next(judge.errors(run), None) is None), None)


def _needs_more(settings: Settings) -> tuple[object, ...]:
    """A sort key for ways to shard the states within a ZeRO stage, the one that needs least memory first."""
    optimizer, parameters = settings["zero.offload_optimizer"], settings["zero.offload_parameters"]
    keeps = settings["backend.reshard_after_forward"] is False
    return keeps, settings["parallel.replicate"], settings["zero.hpz"], parameters == "none", optimizer == "none"


def _is_plain(variant: RunSpec) -> bool:
    """True if no other schedule of the same stages needs less memory."""
    return variant.parallel.schedule == "1f1b" and variant.parallel.virtual_pipeline == 1
