"""The memory estimate of a run and its error band, as frozen data in the shape of ``launch check --json``.

:class:`Needs` is the part that decides the verdict; it is computed alone while ways out are searched.
:class:`MemoryEstimate` adds what is shown: piles, phases, stages and parameter counts.
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
"""Measured / predicted memory of the measured runs, from which the error bands are taken.

Written by ``python -m benchmarks.memory --data DIR --write-band``.
"""

_SMOOTH = 0.01  # Deviation by which each quantile is smoothed: a sample does not tell its quantiles more closely.
_UNKNOWN = 2  # Factor on the widest band for an engine without measured runs: a choice, as nothing can be measured.
_CERTAIN = 6.0  # Deviations from which ``erf`` is 1.0, so that most runs need no sum over their band.
LEAST_ROWS = 20  # Fewest measured runs for a band: below, a quantile would rest on one or two runs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Quantiles of measured / predicted."""

    low: float  # The 0.1 quantile.
    median: float
    high: float  # The 0.9 quantile.
    quantiles: tuple[float, ...]  # At the midpoints of equal shares.
    allocated: bool  # True if they compare bytes that torch's allocator hands out, without fragmentation.
    rows: int  # Number of measured runs behind them.
    whose: str  # The framework of these runs.
    own: bool  # True if that is the framework being judged.
    runs_on: str | None = None  # Otherwise the engine that both frameworks run on, if they share one.
    # The parts of the run's mode that no measured run backs, for which the band is another framework's.
    lacking: tuple[str, ...] = ()

    def chance(self, room: float, loses: float) -> float:
        """Return the probability that a run takes no more than ``room``, in units of the predicted bytes.

        It is the share of the measured runs that would have fitted, each smoothed by a normal distribution of the
        logarithm. Its deviation is ``loses``, that of the allocator's fragmentation, where the runs do not include
        fragmentation, and a percent otherwise. Where neither the framework nor its engine was measured, the runs count
        as twice as far from the median as those of the widest band. Evidence: of 106 of nanotron's runs (Ultra-Scale
        Playbook) with predictions of 0.9 to 1.2 times the card, the mean of measured / predicted speed, 0 for those
        that ran out of memory, falls as this probability does: 0.95 at 0.92, 0.45 at 1.0, 0.18 at 1.04, 0.09 at 1.12.
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
    """The error band of a framework: from its measured runs, another framework's on the same engine, or the widest.

    On the CPU, whose allocator keeps no cache, it comes from the workers' own runs. A mode with ``lacking`` parts,
    which no measured run has, gets the widest band.
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
    """The peak of the worst rank, in the four counters that people read, and the error band of ``needed_bytes``."""

    allocated_bytes: int  # ``torch.cuda.max_memory_allocated``; on the CPU the bytes of all live tensors.
    needed_bytes: int  # The least capacity with which the caching allocator does not run out of memory.
    reserved_bytes: int  # ``torch.cuda.max_memory_reserved``.
    device_bytes: int  # Bytes that nvidia-smi shows for the process.
    low_bytes: int  # The lower end of the band around ``needed_bytes``; at most ``allocated_bytes``.
    high_bytes: int  # The upper end; at least ``needed_bytes``.
    phase: Phase  # The phase of the peak.
    stage: int  # The pipeline stage of the worst rank.


@dataclass(frozen=True, slots=True, kw_only=True)
class PileBytes:
    """One pile at the peak of the worst rank, with its formula and source."""

    pile: Pile | HostPile
    bytes: int
    formula: str
    source: str

    @classmethod
    def of(cls, pile: Pile | HostPile, terms: Sequence[MemoryTerm]) -> "PileBytes":
        """Return the pile that these terms add up to."""
        return cls(
            pile=pile,
            bytes=sum(term.bytes for term in terms),
            formula=" + ".join(term.formula for term in terms),
            source="; ".join(dict.fromkeys(term.source for term in terms)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeak:
    """The memory of one rank of a pipeline stage."""

    stage: int
    static_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Parameters of the model, those active for one token, and those that the worst rank keeps between two steps."""

    total: int
    active: int
    per_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Host RAM of one node."""

    bytes_per_node: int  # The sum of the terms.
    capacity_bytes: int | None  # ``None`` where it is unknown.
    terms: tuple[MemoryTerm, ...] = field(default=(), hash=False)  # Its parts.

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
    """Disk space of checkpoints: of one, and the most that a run holds, those it keeps and the one being written."""

    checkpoint_bytes: int
    kept_bytes: int
    capacity_bytes: int | None
    swapped_bytes: int = 0  # Bytes of one node's files in zero.nvme_path, which is another disk.


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The device memory, host memory and disk space that a run needs."""

    peak: Peak  # The peak of the worst rank.
    outside_bytes: int  # Context and communicators, which lie outside torch's allocator.
    # Device bytes needed at each moment, ``outside_bytes`` included, on the rank that needs most.
    moments: tuple[int, ...]
    host: HostMemory  # Host memory of a node.
    disk: DiskSpace  # Checkpoints on disk.
    band: Band | None = None  # The quantiles that the ends of the error band are taken from.
    loses: float = 0.0  # Standard deviation of the logarithm of the allocator's fragmentation.

    def chance(self, capacity: int) -> float:
        """Return the probability that the run fits the device, in whole percent: it is not known more closely."""
        room = capacity - self.outside_bytes
        if self.band is None:
            return float(self.peak.needed_bytes <= room)
        return round(self.band.chance(room / self.peak.needed_bytes, self.loses), 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate(Needs):
    """The memory estimate of one run."""

    parameters: ParameterCount  # Parameter counts.
    static_bytes: int  # Allocated between two steps on the worst rank.
    phases: dict[Phase, int] = field(hash=False)  # The allocated peak of each phase, on the rank where it is highest.
    piles: tuple[PileBytes, ...]  # The parts of the worst rank's peak; they sum to ``peak.device_bytes``.
    ranks: tuple[RankPeak, ...]  # One rank of each pipeline stage.

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """The parts of the run's mode that no measured run backs."""
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
    """The fields of a row of plain values by name; faster than ``asdict``, which looks into each value to copy it."""
    return {one.name: getattr(row, one.name) for one in fields(row)}
