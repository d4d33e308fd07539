"""The ways out of a run that does not fit: neighbours of its specification that are valid and fit.

Neighbours are tried one at a time, then in pairs, then as a chain that takes the strongest one again and again. Found
fixes are those of the first of these stages that finds any, cheapest first: the table in ``neighbours`` is in the
order of cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from launcher.memory import MemoryEstimate
from launcher.neighbours import NEIGHBOURS, Change, Neighbour
from launcher.spec import RunSpec
from launcher.verdict import Verdict

_SHOWN = 5
_PAIRS_SHOWN = 3
_LONGEST_CHAIN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A valid neighbour: its estimate and verdict."""

    estimate: MemoryEstimate
    verdict: Verdict


type Judge = Callable[[RunSpec], Judged | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One way out.

    Attributes:
        overrides: To be pasted behind the command line.
        spec: The run that they give.
        peak_bytes: What the worst rank then needs, with context and communicators: the figure of the verdict.
        excess_bytes: By how much device, host and disk are too small even so; 0 where it fits.
        cost: What it costs, in words.
    """

    overrides: tuple[str, ...]
    spec: RunSpec
    peak_bytes: int
    excess_bytes: int
    cost: str

    def as_dict(self) -> dict[str, object]:
        """The form in which ``check --json`` lists it."""
        return {"overrides": list(self.overrides), "peak_bytes": self.peak_bytes, "cost": self.cost}


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What a search found: fixes, or the neighbour that comes nearest and is not enough."""

    found: tuple[Fix, ...] = ()
    nearest: Fix | None = None


def search(spec: RunSpec, judge: Judge) -> Search:
    """Look for changes with which a run fits.

    Args:
        spec: A valid run that does not fit.
        judge: The rules and the estimate; None for an invalid run.
    """
    singles = [fix for neighbour in NEIGHBOURS for fix in _first_fitting(_Base(spec), neighbour, judge)]
    if fits := [fix for fix in singles if not fix.excess_bytes]:
        return Search(found=tuple(fits[:_SHOWN]))
    if pairs := list(_pairs(spec, judge)):
        return Search(found=tuple(pairs))
    chain = _chain(spec, judge)
    if chain is not None and not chain.excess_bytes:
        return Search(found=(chain,))
    return Search(nearest=chain)


@dataclass(frozen=True, slots=True)
class _Base:
    """Where a step of the search starts: a run and the changes that led to it."""

    spec: RunSpec
    changes: tuple[Change, ...] = ()


def _first_fitting(base: _Base, neighbour: Neighbour, judge: Judge) -> Iterator[Fix]:
    """The weakest variant that fits, else the strongest that is valid, else nothing.

    Variants come weakest first; where the last does not fit, weaker ones do not either and are not tried.
    """
    variants = list(neighbour(base.spec))
    strongest = next((fix for change in reversed(variants) if (fix := _fix(base, change, judge))), None)
    if strongest is None:
        return
    if not strongest.excess_bytes:
        for change in variants:
            fix = _fix(base, change, judge)
            if fix is not None and not fix.excess_bytes:
                yield fix
                return
    yield strongest


def _fix(base: _Base, change: Change, judge: Judge) -> Fix | None:
    judged = judge(change.spec)
    if judged is None or judged.verdict.used_bytes is None:
        return None
    changes = (*base.changes, change)
    return Fix(
        overrides=_merged(changes),
        spec=change.spec,
        peak_bytes=judged.verdict.used_bytes,
        excess_bytes=sum(short.used_bytes - short.capacity_bytes for short in judged.verdict.shortages),
        cost="; ".join(step.cost for step in changes),
    )


def _merged(changes: tuple[Change, ...]) -> tuple[str, ...]:
    """The overrides of several changes, a key once with its last value."""
    by_key = {text.partition("=")[0]: text for change in changes for text in change.overrides}
    return tuple(by_key.values())


def _pairs(spec: RunSpec, judge: Judge) -> Iterator[Fix]:
    """Pairs that fit, the strongest variant of the cheaper one first."""
    shown = 0
    for index, first in enumerate(NEIGHBOURS):
        variants = list(first(spec))
        if not variants:
            continue
        base = _Base(variants[-1].spec, (variants[-1],))
        for second in NEIGHBOURS[index + 1 :]:
            fitting = [fix for fix in _first_fitting(base, second, judge) if not fix.excess_bytes]
            yield from fitting
            shown += len(fitting)
            if shown >= _PAIRS_SHOWN:
                return


def _chain(spec: RunSpec, judge: Judge) -> Fix | None:
    """Take what lowers the excess most, again and again, until it fits or nothing helps."""
    base, best = _Base(spec), None
    for _ in range(_LONGEST_CHAIN):
        steps = [
            (fix.excess_bytes, fix.peak_bytes, index, fix, change)
            for index, neighbour in enumerate(NEIGHBOURS)
            for change in list(neighbour(base.spec))[-1:]
            if (fix := _fix(base, change, judge)) is not None
        ]
        if not steps:
            break
        *_, fix, change = min(steps, key=lambda step: step[:3])
        if best is not None and (fix.excess_bytes, fix.peak_bytes) >= (best.excess_bytes, best.peak_bytes):
            break
        best, base = fix, _Base(change.spec, (*base.changes, change))
        if not best.excess_bytes:
            break
    return best
