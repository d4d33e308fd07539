"""Detects memory that grows from step to step in ``memory.jsonl``: a leak, a cache, ever longer batches.

The first two steps are skipped, since optimizer states appear in them. With too few records for a series, memory that
is live between two steps but should not be indicates the same (:func:`kept`).
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from launcher.base import typed
from launcher.base.frozen import dataclass
from launcher.job import events
from launcher.job.memory import MemoryRecord, OutOfMemory, records
from launcher.why.comparison import WITHIN, Comparison

_SETTLED = 2
_FEWEST = 6  # Fewest records in a series: three rise by chance once in six times. With fewer, ``kept`` decides.
_RISES = 0.8
"""Least share of rising steps between records of a growing pile, to exclude a bucket that fills and empties."""

_SMALLEST = 0.01  # Least growth over the whole series that is reported, as a share of the live bytes at its start.


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A pile that grows on one rank."""

    rank: int  # The rank of the job.
    pile: str  # The pile that grows most.
    first: int  # The first step of the series.
    last: int  # The last step of the series.
    grown_bytes: int  # Growth between them.
    total_bytes: int  # The rank's highest peak in the last record.
    capacity_bytes: int | None  # What it may use; None if unknown.
    longer: bool  # True if its micro-batches grew in tokens, too.

    @property
    def bytes_a_step(self) -> float:
        """The growth per step."""
        return self.grown_bytes / (self.last - self.first)

    @property
    def full_at(self) -> int | None:
        """The step at which the device is full at this rate; None if its capacity is unknown."""
        if self.capacity_bytes is None:
            return None
        return self.last + int(max(0, self.capacity_bytes - self.total_bytes) / self.bytes_a_step)


def kept(oom: OutOfMemory, idle: Mapping[str, int], found: Comparison) -> int:
    """Unpredicted bytes of the grown pile that were live between steps; 0 if below a quarter of the growth."""
    if found.kind != "grown" or oom.last is None or oom.last.static is None or not oom.last.step:
        return 0
    row = found.grown[0]
    size = oom.last.static.get(row.pile, 0) - idle.get(row.pile, 0)
    return size if size > WITHIN * found.predicted_bytes and 4 * size >= row.grown_bytes else 0


def this_attempt(run: Path) -> list[MemoryRecord]:
    """The records since the ranks were last started."""
    return [record for record in records(run) if record.time >= began(run)]


def began(run: Path) -> float:
    """The time at which the ranks were last started; 0 if unknown."""
    times = (line.get("time") for line in events.read(run) if line["kind"] == "start")
    return max((float(time) for time in times if typed.is_number(time)), default=0.0)


def fastest(found: Iterable[MemoryRecord]) -> Growth | None:
    """The growth of the rank that grows fastest; None if none does."""
    of_ranks: dict[int, list[MemoryRecord]] = {}
    for record in found:
        of_ranks.setdefault(record.rank, []).append(record)
    growths = (growth for own in of_ranks.values() if (growth := of_rank(own)) is not None)
    return max(growths, key=lambda growth: growth.bytes_a_step, default=None)


def of_rank(own: Sequence[MemoryRecord]) -> Growth | None:
    """The pile that grows most over the records of one rank; None if none does."""
    if not own:
        return None
    settled = [record for record in own if record.step > own[0].step + _SETTLED or record.step > _SETTLED]
    series = [(record, piles) for record in settled if (piles := _piles(record)) is not None]
    if len(series) < _FEWEST or series[-1][0].step <= series[0][0].step:
        return None
    (start, before), (end, after) = series[0], series[-1]
    grown = {pile: size - before.get(pile, 0) for pile, size in after.items()}
    pile = max(grown, key=lambda name: grown[name], default=None)
    if pile is None or grown[pile] < _SMALLEST * max(1, sum(before.values())):
        return None
    if not _rises([piles.get(pile, 0) for _, piles in series]):
        return None
    tokens = [record.tokens for record, _ in series if record.tokens is not None]
    return Growth(
        rank=end.rank,
        pile=pile,
        first=start.step,
        last=end.step,
        grown_bytes=grown[pile],
        total_bytes=max(
            (peak.allocated_bytes for peak in end.phases.values()), default=sum((end.static or {}).values())
        ),
        capacity_bytes=end.device_bytes,
        longer=bool(tokens) and tokens[-1] > tokens[0],
    )


def _piles(record: MemoryRecord) -> Mapping[str, int] | None:
    if record.static is not None:
        return record.static
    of_steps = [peak for name, peak in record.phases.items() if name in ("forward", "backward", "optimizer")]
    return max(of_steps, key=lambda peak: peak.allocated_bytes).piles if of_steps else None


def _rises(sizes: Sequence[int]) -> bool:
    ups = sum(after > before for before, after in itertools.pairwise(sizes))
    return ups >= _RISES * (len(sizes) - 1)
