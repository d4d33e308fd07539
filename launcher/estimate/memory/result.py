"""The answer of the estimate and its error band, as frozen data in the shape of ``launch check --json``.

:class:`Needs` is the part that a verdict rests on, computed alone while ways out are searched; :class:`MemoryEstimate`
adds what is shown: piles, phases, stages and parameter counts.
"""

from collections.abc import Sequence
from dataclasses import field, fields
from typing import TYPE_CHECKING, get_args

from launcher.base import files
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.estimate.memory.moments import Phase
from launcher.estimate.memory.terms import HostPile, MemoryTerm, Pile

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
import math
from functools import cache
from pathlib import Path

RESIDUALS = Path(__file__).with_name("residuals.json")
"""How far measured runs lay from this model's own predictions of them.

Written by ``python -m benchmarks.memory --data DIR --write-band``.
"""

_SMOOTH = 0.01  # Of a sample the quantiles are no better known.
_UNKNOWN = 2  # Times the widest band of any: a choice, since nothing can be measured of what is unknown.
_CERTAIN = 6.0  # From here on ``erf`` is 1.0, so that most runs need no sum over their band.
LEAST_ROWS = 20  # Measured runs below which a quantile would be that of one or two runs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Quantiles of measured / predicted."""

    low: float  # The lower one, 0.1.
    median: float
    high: float  # The upper one, 0.9.
    quantiles: tuple[float, ...]  # At the middles of equal shares.
    allocated: bool  # True if they are of bytes that torch's allocator hands out, without what it loses itself.
    rows: int  # The runs that they are of.
    whose: str  # The framework whose runs they are.
    own: bool  # True if that is the framework that is judged.
    runs_on: str | None = None  # Else the engine that both run on, if they share one.
    lacking: tuple[
        str, ...
    ] = ()  # The parts of the run's mode that no measured run backs, for which they are another's.

    def chance(self, room: float, loses: float) -> float:
        """The probability that a run takes no more than ``room``, in units of what is predicted.

        It is the share of the runs that would have had room, each smoothed by a normal distribution of the logarithm:
        of ``loses``, the deviation of what the allocator loses, where the runs do not show it, else of a percent. Where
        nothing was measured of the framework or its engine, the runs lie twice as far from the median as those of the
        widest band. Of 106 of nanotron's runs (Ultra-Scale Playbook), for which 0.9 to 1.2 times the card is predicted,
        the mean of measured / predicted speed, 0 of those that ran out of memory, falls as this does: 0.95 at 0.92,
        0.45 at 1.0, 0.18 at 1.04, 0.09 at 1.12.
        """
        if room <= 0:
            return 0.0
        deviation = math.hypot(_SMOOTH, loses if self.allocated else 0.0) * math.sqrt(2)
        further = 1 if self.own or self.runs_on is not None else _UNKNOWN
        nearest = math.log(room / self.median) - further * math.log(self.quantiles[-1] / self.median)
        if nearest >= _CERTAIN * deviation:
            return 1.0
        distances = (math.log(room / self.median) - further * math.log(each / self.median) for each in self.quantiles)
        return sum(1 + math.erf(each / deviation) for each in distances) / 2 / len(self.quantiles)


@cache
def band(framework: str, *, cuda: bool, runs_on: str | None = None, lacking: tuple[str, ...] = ()) -> Band:
    """The band of a framework: of its measured runs, of another's on the same engine, or the widest of any.

    On the CPU, where no allocator keeps a cache, it is that of the workers' own runs. Of a mode with parts that are
    ``lacking`` in all measured runs it is the widest.
    """
    found = files.own_json(RESIDUALS)
    own = None if lacking else found["measured" if cuda else "own_runs"].get(framework)
    if own is not None and (not cuda or own["rows"] >= LEAST_ROWS):
        return _read(framework, own, own=True)
    enough = {name: row for name, row in found["measured"].items() if row["rows"] >= LEAST_ROWS}
    related = {name: row for name, row in enough.items() if not lacking and runs_on and row.get("engine") == runs_on}
    whose, row = max((related or enough).items(), key=lambda item: float(item[1]["high"] - item[1]["low"]))
    return _read(whose, row, own=False, runs_on=row["engine"] if related else None, lacking=lacking)


def _read(whose: str, row: JsonObject, *, own: bool, runs_on: str | None = None, lacking: tuple[str, ...] = ()) -> Band:
    return Band(
        low=row["low"],
        median=row["median"],
        high=row["high"],
        quantiles=tuple(row["quantiles"]),
        allocated=row.get("counter") == "allocated",
        rows=row["rows"],
        whose=whose,
        own=own,
        runs_on=runs_on,
        lacking=lacking,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The peak of the worst rank, in the four counters that people read, and the error band around ``needed``."""

    allocated_bytes: int  # ``torch.cuda.max_memory_allocated``; on the CPU the bytes of all live tensors.
    needed_bytes: int  # The least capacity with which the caching allocator does not run out.
    reserved_bytes: int  # ``torch.cuda.max_memory_reserved``.
    device_bytes: int  # Bytes that nvidia-smi shows for the process.
    low_bytes: int  # The lower end of the band around ``needed_bytes``; at most ``allocated_bytes``.
    high_bytes: int  # The upper end; at least ``needed_bytes``.
    phase: Phase  # The phase of the peak.
    stage: int  # The pipeline stage of the worst rank.


@dataclass(frozen=True, slots=True, kw_only=True)
class PileBytes:
    """One pile, as at the peak of the worst rank, with how it was computed and where that stands."""

    pile: Pile | HostPile
    bytes: int
    formula: str
    source: str

    @classmethod
    def of(cls, pile: Pile | HostPile, terms: Sequence[MemoryTerm]) -> "PileBytes":
        """The pile that is the sum of some terms."""
        return cls(
            pile=pile,
            bytes=sum(term.bytes for term in terms),
            formula=" + ".join(term.formula for term in terms),
            source="; ".join(dict.fromkeys(term.source for term in terms)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeak:
    """One rank of one pipeline stage."""

    stage: int
    static_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Parameters: of the model, those that one token meets, and those that the worst rank keeps between two steps."""

    total: int
    active: int
    per_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Host RAM of one node."""

    bytes_per_node: int  # The sum of the terms.
    capacity_bytes: int | None  # ``None`` where it is unknown.
    terms: tuple[MemoryTerm, ...] = field(default=(), hash=False)  # What takes it.

    @property
    def piles(self) -> dict[HostPile, tuple[MemoryTerm, ...]]:
        """The terms of each pile that is not empty."""
        names: tuple[HostPile, ...] = get_args(HostPile.__value__)
        found = {name: tuple(term for term in self.terms if term.pile == name) for name in names}
        return {name: terms for name, terms in found.items() if terms}

    def as_dict(self) -> dict[str, object]:
        """The part of the document of ``launch check --json``."""
        piles = [_values(PileBytes.of(name, terms)) for name, terms in self.piles.items()]
        return {"bytes_per_node": self.bytes_per_node, "capacity_bytes": self.capacity_bytes, "piles": piles}


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """One checkpoint on disk; ``kept_bytes`` are the most of a run: those that it keeps and the one being written."""

    checkpoint_bytes: int
    kept_bytes: int
    capacity_bytes: int | None
    swapped_bytes: int = 0  # Of the files of one node's ranks in zero.nvme_path, which is another disk.


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The needs of a run of its device, host and disk."""

    peak: Peak  # The peak of the worst rank.
    outside_bytes: int  # Context and communicators: what its device holds outside of torch's allocator.
    # Bytes of the device that each moment needs, ``outside_bytes`` included, on the rank that needs most.
    moments: tuple[int, ...]
    host: HostMemory  # Host memory of a node.
    disk: DiskSpace  # Checkpoints on disk.
    band: Band | None = None  # The quantiles that the error band's ends are taken from.
    loses: float = 0.0  # Deviation of the share that the allocator loses, as a logarithm.

    def chance(self, capacity: int) -> float:
        """The probability that the device suffices, in whole percent: there is no telling more."""
        room = capacity - self.outside_bytes
        if self.band is None:
            return float(self.peak.needed_bytes <= room)
        return round(self.band.chance(room / self.peak.needed_bytes, self.loses), 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate(Needs):
    """The answer of the memory model for one run."""

    parameters: ParameterCount  # Parameter counts.
    static_bytes: int  # Allocated between two steps on the worst rank.
    phases: dict[Phase, int] = field(hash=False)  # The allocated peak of each phase, of the rank that is worst in it.
    piles: tuple[PileBytes, ...]  # The parts of the worst rank's peak; they sum to ``peak.device_bytes``.
    ranks: tuple[RankPeak, ...]  # One rank of each pipeline stage.

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """The parts of the run's mode that nothing measured backs."""
        return () if self.band is None else self.band.lacking

    @property
    def largest_pile(self) -> PileBytes:
        """The pile with the most bytes."""
        return max(self.piles, key=lambda pile: pile.bytes)

    def as_dict(self) -> dict[str, object]:
        """The memory part of the document of ``launch check --json``."""
        return {
            "parameters": _values(self.parameters),
            "static_bytes": self.static_bytes,
            "peak": _values(self.peak),
            "phases": dict(self.phases),
            "piles": [_values(pile) for pile in self.piles],
            "ranks": [_values(rank) for rank in self.ranks],
            "host": self.host.as_dict(),
        }


def _values(row: "DataclassInstance") -> dict[str, object]:
    """A row of plain values by their names; ``asdict`` would look for what to copy in each."""
    return {one.name: getattr(row, one.name) for one in fields(row)}
