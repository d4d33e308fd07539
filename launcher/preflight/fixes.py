"""The ways out of a run that does not fit: neighbours of its specification that are valid and fit.

Neighbours are tried one at a time, then in pairs, then as a greedy chain that adds the most effective change each time.
The first stage that finds enough fixes decides. They come in the order of the table in ``preflight.changes``, by cost;
if speeds can be predicted, ``launcher.preflight.pricing`` sorts them by speed. If fewer than two single changes suffice
without changing the training or adding GPUs, pairs are listed too, before the single changes that do either. A chain is
tried with the run's own GPUs first. Fixes that need more GPUs come after all others, the fewest GPUs first. If only the
disk is too small, only changes of what is kept on disk are tried.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import combinations
from typing import Protocol

from launcher.base.frozen import dataclass
from launcher.base.units import compared
from launcher.estimate.memory.moments import MOMENTS
from launcher.preflight.changes import ANOTHER_TRAINING, ELSEWHERE, GIVES_UP, NEIGHBOURS, OF_PASSES, ON_DISK
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec
from launcher.spec.change import Change, Neighbour

_SHOWN, _PAIRS_SHOWN = 5, 3  # As many ways out as a person can weigh at once, and pairs among them.
_LONGEST_CHAIN = 5  # Most changes in a chain: with more it would be a different run.
_ENOUGH = 2  # Fewest ways out that leave the user a choice.
_NODE, _MODEST = 8, 4
"""A fix that needs at most this many GPUs, or this many times the run's own, is enough of an answer by itself."""


class NeighbourJudge(Protocol):
    """Judges the neighbours of a run by the rules and the estimate."""

    def __call__(self, spec: RunSpec, /, *, roughly: bool = False) -> Verdict | None:
        """The verdict on a run; None if it is invalid.

        Args:
            spec: The run.
            roughly: True if it is enough to know that a run does not fit, which takes half the time.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One way out."""

    overrides: tuple[str, ...]  # To append to the command line.
    spec: RunSpec  # The resulting run.
    peak_bytes: int  # Bytes that its worst rank needs, with context and communicators, as in the verdict.
    excess_bytes: int  # Bytes by which device, host and disk are still too small; 0 if it fits.
    cost: str  # Its cost, in words.
    stays: str = ""  # The part of the cost that a predicted speed does not cover.
    # Its tokens a second, of all ranks together, over those of the original run; None if unknown.
    speed: float | None = None
    # The largest value of its changes in ``preflight.changes.GIVES_UP``; 0 if none is listed there.
    group: int = 0
    shortfall_by_moment: tuple[int, ...] = ()  # Bytes missing at each moment and place, as in the verdict.

    @property
    def price(self) -> str:
        """Its cost as a clause: the relative speed and other costs, or the cost in words if no speed is known."""
        if self.speed is None:
            return f"costs {self.cost}"
        return compared(self.speed) + (f"; costs {self.stays}" if self.stays else "")

    def as_dict(self) -> dict[str, object]:
        """The form in which ``check --json`` lists it."""
        return {
            "overrides": list(self.overrides),
            "peak_bytes": self.peak_bytes,
            "speed": self.speed,
            "cost": self.cost,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The result of a search: fixes, or else the neighbour that comes closest to fitting."""

    found: tuple[Fix, ...] = ()
    nearest: Fix | None = None


type Searching = Callable[[RunSpec, NeighbourJudge], Search]


def search(spec: RunSpec, judge: NeighbourJudge, without: Collection[Neighbour] = ()) -> Search:
    """Find changes that make a valid run fit; ``judge`` gives None for an invalid run, ``without`` is not tried."""
    tree = _Tree(spec, judge)
    tree.neighbours = tuple(neighbour for neighbour in tree.neighbours if neighbour not in without)
    singles, single_fixes = _single_fixes(tree)
    enough = {n for n, fix in single_fixes.items() if n not in ANOTHER_TRAINING and not tree.asks_for_more(fix)}
    if len(enough) >= _ENOUGH:
        return Search(found=_in_order(tree, tree.neighbours, (), single_fixes))
    promising = {n: one for n, one in singles.items() if one is None or _is_promising(tree, one)}
    if single_fixes:
        promising = {n: one for n, one in promising.items() if n not in ANOTHER_TRAINING | enough}
    pairs = list(_until_enough(_pairs(tree, promising), tree))
    pair_fixes = [_relaxed(tree, pair) for pair in pairs if not pair.fix.excess_bytes]
    fits = _in_order(tree, enough, pair_fixes, single_fixes)
    if any(not tree.asks_for_more(fix) for fix in fits):
        return Search(found=fits)
    tried = [*singles.values(), *pairs]
    limits = [spec.gpus] if fits else [spec.gpus, None]
    chains = [_chain(tree, promising, tried, most) for most in limits]
    fits = (*(_relaxed(tree, chain) for chain in chains if chain is not None and not chain.fix.excess_bytes), *fits)
    nearest = None if fits else _closest(chains)
    return Search(found=tuple({fix.overrides: fix for fix in fits}.values()), nearest=nearest.fix if nearest else None)


def search_singles(spec: RunSpec, judge: NeighbourJudge) -> Search:
    """Find single changes that make a run fit, and nothing more, in a fraction of the time."""
    tree = _Tree(spec, partial(judge, roughly=True))
    hopeless = _unhelpful(spec, judge)
    tree.neighbours = tuple(neighbour for neighbour in tree.neighbours if neighbour not in hopeless)
    return Search(found=_in_order(tree, tree.neighbours, (), _single_fixes(tree)[1]))


def _unhelpful(spec: RunSpec, judge: NeighbourJudge) -> Collection[Neighbour]:
    """Single changes that cannot help: they do not touch the device, or not what it holds between two steps."""
    start = judge(spec)
    if start is None or start.headroom_bytes is None:
        return ()
    *device, host, disk = start.shortfall_by_moment
    between = dict(zip(MOMENTS, device, strict=True))["idle"] - start.margin_bytes
    if between > 0:
        return OF_PASSES
    return ELSEWHERE if max(device) > 0 and max(host, disk) <= 0 else ()


type _Step = tuple[Neighbour, int]
"""A neighbour and the index of its variant, counted from the weakest."""

type _Steps = tuple[_Step, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Steps that lead to a valid run, and that run as a fix."""

    steps: _Steps
    fix: Fix


class _Tree:
    """The runs reachable from one run by steps; each change is computed once, and each run judged once."""

    def __init__(self, spec: RunSpec, judge: Callable[[RunSpec], Verdict | None]) -> None:
        self._judge, self._spec = judge, spec
        # Caches: each is computed once.
        self.variants, self.fix, self._changed = cache(self._variants), cache(self._fix), cache(self._changes)
        start = self.fix(())
        assert start is not None, "only a valid run is searched"
        self.start = start
        *memory, disk = start.shortfall_by_moment or (0,)
        self.neighbours = ON_DISK if disk > 0 and all(lacks <= 0 for lacks in memory) else NEIGHBOURS

    def asks_for_more(self, fix: Fix) -> bool:
        """True if it needs more GPUs than the run has."""
        return fix.spec.gpus > self._spec.gpus

    def is_modest(self, fix: Fix) -> bool:
        """True if it needs at most four times the run's GPUs, or one typical node."""
        return fix.spec.gpus <= max(_NODE, _MODEST * self._spec.gpus)

    def _variants(self, steps: _Steps, neighbour: Neighbour) -> tuple[Change, ...]:
        """The variants of one neighbour after the steps; none if the steps are impossible."""
        changes = self._changed(steps)
        return () if changes is None else tuple(neighbour(changes[-1].spec if changes else self._spec))

    def _changes(self, steps: _Steps) -> tuple[Change, ...] | None:
        if not steps:
            return ()
        *before, (neighbour, index) = steps
        earlier, variants = self._changed(tuple(before)), self.variants(tuple(before), neighbour)
        return (*earlier, variants[index]) if earlier is not None and index < len(variants) else None

    def _fix(self, steps: _Steps) -> Fix | None:
        """The run after the steps as a fix; None if a step is impossible or the run invalid."""
        changes = self._changed(steps)
        if changes is None:
            return None
        spec = changes[-1].spec if changes else self._spec
        verdict = self._judge(spec)
        if verdict is None or verdict.used_bytes is None:
            return None
        return Fix(
            overrides=tuple({text.partition("=")[0]: text for change in changes for text in change.overrides}.values()),
            spec=spec,
            peak_bytes=verdict.used_bytes,
            excess_bytes=verdict.excess_bytes,
            shortfall_by_moment=verdict.shortfall_by_moment,
            cost="; ".join(change.cost for change in changes),
            stays="; ".join(change.cost for change in changes if change.stays),
            group=max((GIVES_UP.get(neighbour, 0) for neighbour, _ in steps), default=0),
        )


def _single_fixes(tree: _Tree) -> tuple[dict[Neighbour, _Candidate | None], dict[Neighbour, Fix]]:
    """The strongest valid variant of each neighbour, and the fixes among them; stops once enough are found to show."""
    singles: dict[Neighbour, _Candidate | None] = {}
    fixes: dict[Neighbour, Fix] = {}
    for neighbour in tree.neighbours:
        candidate = singles[neighbour] = _strongest(tree, (), neighbour)
        if candidate and not candidate.fix.excess_bytes:
            fixes[neighbour] = _relaxed(tree, candidate)
        if len(fixes) == _SHOWN:
            break
    return singles, fixes


def _is_promising(tree: _Tree, candidate: _Candidate) -> bool:
    """True if a change helps at a moment of shortage, or enables another change, as more ranks enable sharding.

    A change whose help is hidden by the peak at another moment counts: the other half of a pair may lower that peak.
    """
    compared = zip(candidate.fix.shortfall_by_moment, tree.start.shortfall_by_moment, strict=True)
    if any(after < before for after, before in compared if before > 0):
        return True
    return any(
        not tree.variants((), neighbour) and tree.variants(candidate.steps, neighbour) for neighbour in tree.neighbours
    )


def _strongest(tree: _Tree, steps: _Steps, neighbour: Neighbour) -> _Candidate | None:
    for index in reversed(range(len(tree.variants(steps, neighbour)))):
        further = (*steps, (neighbour, index))
        if fix := tree.fix(further):
            return _Candidate(further, fix)
    return None


def _relaxed(tree: _Tree, found: _Candidate) -> Fix:
    """The fix reduced to the weakest variants and the fewest steps that still fit."""
    steps, best, position = found.steps, found.fix, 0
    while position < len(steps):
        before, (neighbour, strength), after = steps[:position], steps[position], steps[position + 1 :]
        weaker = [(*before, *after)] if len(steps) > 1 else []
        weaker += [(*before, (neighbour, index), *after) for index in range(strength)]
        for trial in weaker:
            fix = tree.fix(trial)
            if fix is not None and not fix.excess_bytes and (tree.is_modest(fix) or len(trial) == len(steps)):
                position -= len(steps) - len(trial)
                steps, best = trial, fix
                break
        position += 1
    return best


def _pairs(tree: _Tree, promising: Mapping[Neighbour, _Candidate | None]) -> Iterator[_Candidate]:
    """Pairs in the order of their cheaper change; if that is invalid alone, it is applied second."""
    for first, second in combinations(promising, 2):
        valid, other = (promising[first], second) if promising[first] else (promising[second], first)
        if valid is not None and (pair := _strongest(tree, valid.steps, other)):
            yield pair


def _until_enough(candidates: Iterable[_Candidate], tree: _Tree) -> Iterator[_Candidate]:
    enough = _PAIRS_SHOWN
    for candidate in candidates:
        yield candidate
        if not candidate.fix.excess_bytes and tree.is_modest(_relaxed(tree, candidate)):
            enough -= 1
        if not enough:
            return


def _in_order(
    tree: _Tree, enough: Collection[Neighbour], pair_fixes: Sequence[Fix], single_fixes: Mapping[Neighbour, Fix]
) -> tuple[Fix, ...]:
    """Single changes that are enough, pairs and the rest, then fixes with more GPUs, the fewest first.

    Fixes with many GPUs are listed only if there are hardly any others.
    """
    first = [fix for neighbour, fix in single_fixes.items() if neighbour in enough]
    last = [fix for neighbour, fix in single_fixes.items() if neighbour not in enough]
    fits = list({fix.overrides: fix for fix in (*first, *pair_fixes, *last)}.values())
    fits.sort(key=lambda fix: fix.spec.gpus if tree.asks_for_more(fix) else 0)
    modest = [fix for fix in fits if tree.is_modest(fix)]
    many = [] if len(modest) >= _ENOUGH else [fix for fix in fits if not tree.is_modest(fix)]
    return (*modest, *many)[:_SHOWN]


def _chain(
    tree: _Tree, promising: Iterable[Neighbour], tried: Iterable[_Candidate | None], most: int | None
) -> _Candidate | None:
    """The best candidate extended by the change that lowers the excess most, until it fits or nothing helps.

    ``most`` is the largest number of GPUs allowed; None allows any number.
    """
    untaken, best = set(promising), _closest(tried, most)
    while best is not None and best.fix.excess_bytes and len(best.steps) < _LONGEST_CHAIN:
        untaken -= {neighbour for neighbour, _ in best.steps}
        further = _closest([_strongest(tree, best.steps, n) for n in tree.neighbours if n in untaken], most)
        if further is None or further.fix.excess_bytes >= best.fix.excess_bytes:
            break
        best = further
    return best


def _closest(candidates: Iterable[_Candidate | None], most: int | None = None) -> _Candidate | None:
    found = [each for each in candidates if each is not None and (most is None or each.fix.spec.gpus <= most)]
    return min(found, key=lambda candidate: (candidate.fix.excess_bytes, candidate.fix.peak_bytes), default=None)
