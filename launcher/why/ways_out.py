"""Ways out for a run that ran out of memory: changes of the run, judged with its measured piles.

A pile that formulas count by tokens or parameters keeps its ratio of measured to predicted at every moment: half the
micro-batch means half the activations. Any other pile keeps its difference in bytes, at the moments of the phase in
which it was seen. A pile smaller than predicted stays as predicted, since a phase that ended early has not reached its
peak. If by this rule the run itself would still fit, although it did not, the missing bytes are added, too.

Each way out is text to append to ``launch resume RUN``; presets are expanded into single keys, and words that a resumed
run does not accept are left out and reported.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil

from launcher.base.frozen import dataclass
from launcher.base.units import gib
from launcher.estimate.memory.estimate import needs
from launcher.estimate.memory.moments import ALWAYS, MOMENTS, TRAINING, Moments
from launcher.estimate.memory.terms import PILES, MemoryTerm, Pile, term
from launcher.estimate.rank.model import RankModel
from launcher.job.memory import OutOfMemory
from launcher.preflight import assess, verdict
from launcher.preflight.fixes import Fix, Search
from launcher.preflight.measured.known import Measured
from launcher.rundir import lock
from launcher.spec import RunSpec, edit
from launcher.why.answer import OTHER_PROCESSES, WayOut
from launcher.why.comparison import Comparison

type Takes = Callable[[Sequence[str]], bool]
"""True if ``launch resume`` accepts these words for the run."""

BY_SIZE: frozenset[str] = frozenset((
    "parameters",
    "gradients",
    "optimizer_states",
    "master_weights",
    "activations",
    "logits",
    "gather_buffers",
    "reduce_buffers",
))
"""Piles that formulas count by tokens or by parameters."""

_SOURCE = "measured when the run ran out of memory"
_STEADY = ("forward", "backward", "optimizer", "evaluation", None)
"""Phases whose piles by size are the same in every step; loading and saving have piles of their own."""

_OTHERS = "other processes on the device"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedBytes:
    """Bytes of a pile at some moments in addition to the prediction."""

    pile: Pile
    moments: Moments
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrections:
    """A run's corrections for the memory model (an ``Adjusted`` of ``launcher.estimate.memory.estimate``)."""

    ratios: Mapping[str, Fraction]  # Measured / predicted, for piles by size.
    added: tuple[AddedBytes, ...] = ()  # Bytes in addition to the prediction.
    unusable_bytes: int = 0  # Bytes that the caching allocator had reserved and could not use, beyond the prediction.
    allocator: str = "default"  # The allocator with which this was measured.

    def __call__(self, rank: RankModel, terms: Sequence[MemoryTerm]) -> Sequence[MemoryTerm]:
        """The terms of a rank, corrected by what was measured."""
        scaled = [
            one if one.pile not in self.ratios else one._replace(bytes=ceil(one.bytes * self.ratios[one.pile]))
            for one in terms
        ]
        beside = [_term(each) for each in self.added]
        if self.unusable_bytes and rank.spec.train.allocator == self.allocator:
            beside.append(_term(AddedBytes(pile="fragmentation", moments=ALWAYS, bytes=self.unusable_bytes)))
        return (*scaled, *beside)


def _term(each: AddedBytes) -> MemoryTerm:
    return term(each.pile, each.moments, "beside the prediction", "size", _SOURCE, size=each.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaysOut:
    """Changes with which the run could continue."""

    ways: tuple[WayOut, ...]  # Changes that a resumed run accepts, the cheapest first.
    untaken: tuple[str, ...] = ()  # The words of those that it does not accept.
    nearest: Fix | None = None  # If nothing fits, the change that comes closest.


def carried(spec: RunSpec, found: Comparison, oom: OutOfMemory, moments: Moments, *, grows: bool) -> Corrections:
    """The corrections measured in a run, to apply to its neighbours."""
    ratios: dict[str, Fraction] = {}
    added: list[AddedBytes] = []
    unusable = 0
    for row in found.grown:
        if row.pile == "fragmentation":
            unusable = row.grown_bytes
        elif row.pile == OTHER_PROCESSES:
            added.append(AddedBytes(pile="context", moments=frozenset(MOMENTS), bytes=row.grown_bytes))
        elif (
            row.pile in BY_SIZE
            and row.predicted_bytes
            and oom.phase in _STEADY
            and not (grows and row.pile == found.pile)
        ):
            ratios[row.pile] = Fraction(row.measured_bytes or 0, row.predicted_bytes or 1)
        else:
            pile: Pile = next((pile for pile in PILES if pile == row.pile), "temporary")
            added.append(AddedBytes(pile=pile, moments=TRAINING if grows else moments, bytes=row.grown_bytes))
    rule = Corrections(ratios=ratios, added=tuple(added), unusable_bytes=unusable, allocator=spec.train.allocator)
    lacking = _missing_bytes(spec, rule, moments)
    if not lacking:
        return rule
    return replace(rule, added=(*rule.added, AddedBytes(pile="temporary", moments=moments, bytes=lacking)))


def _missing_bytes(spec: RunSpec, rule: Corrections, moments: Moments) -> int:
    """Bytes to add to the rule if the run would fit by it, although it did not; 0 if it would not fit."""
    capacity = spec.rank_memory_bytes
    if capacity is None:
        return 0
    own = needs(spec, **assess.parts(spec), adjusted=rule)
    if verdict.judge(spec, own).excess_bytes:
        return 0
    here = max(size for moment, size in zip(MOMENTS, own.moments, strict=True) if moment in moments)
    return max(0, capacity - here) + 1


def on_device(spec: RunSpec, rule: Corrections, name: str, takes: Takes) -> WaysOut:
    """Changes that would make the run fit on its devices, the cheapest first."""
    return as_ways(spec, assess.ways_out(spec, rule, Measured()), name, takes)


def within(spec: RunSpec, key: str, has: int, name: str, takes: Takes) -> WaysOut:
    """Changes that would make it fit if a node's host or the disk, whose capacity is ``key``, had ``has`` bytes."""
    found = assess.ways_out(edit.changed(spec, key, max(0, has)), None, Measured())
    back = [replace(fix, spec=edit.changed(fix.spec, key, edit.value_at(spec, key))) for fix in found.found]
    return as_ways(spec, Search(found=tuple(back)), name, takes, of_device=False)


def as_ways(spec: RunSpec, search: Search, name: str, takes: Takes, *, of_device: bool = True) -> WaysOut:
    """Fixes that a resumed run accepts as commands to paste, with the device memory that they need if ``of_device``."""
    ways, untaken = [], list[str]()
    for fix in search.found:
        words = next((words for words in _spellings(spec, fix) if takes(words)), None)
        if words is None:
            untaken.append(shlex.join(fix.overrides))
        else:
            ways.append(_way(fix, words, name, of_device=of_device))
    return WaysOut(ways=tuple(ways), untaken=tuple(untaken), nearest=search.nearest)


def _spellings(spec: RunSpec, fix: Fix) -> Iterator[tuple[str, ...]]:
    if all("." in word.partition("=")[0] for word in fix.overrides):
        yield fix.overrides
    yield tuple(edit.override(path, after) for path, _, after in lock.spec_differences(spec, fix.spec))


def _way(fix: Fix, words: tuple[str, ...], name: str, *, of_device: bool) -> WayOut:
    return WayOut(
        command=resume(name, words),
        overrides=words,
        text=f"needs {gib(fix.peak_bytes)}; {fix.price}" if of_device else fix.price,
        peak_bytes=fix.peak_bytes if of_device else None,
        speed=fix.speed,
    )


def resume(name: str, words: Sequence[str] = ()) -> str:
    """The command ``launch resume RUN WORDS``, quoted for a shell."""
    return shlex.join(["launch", "resume", name, *words])
