"""What ``launch watch`` shows besides a run's state: its place in the queue, last steps, memory, slowest rank.

Everything is read from the ends of the run's files, so that a look costs the same after a million steps.
"""

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.job import memory
from launcher.job.memory import MemoryRecord
from launcher.rundir import contents, output, results
from launcher.rundir.status import RunState
from launcher.slurm import jobs
from launcher.slurm.jobs import Waiting

RECENT = 60  # Lines of metrics shown as a curve: one per column of a narrow terminal.
_TIMES = "rank_times.jsonl"  # Times of each rank's own work, every ten steps (``launcher.worker.watch``).
_END_BYTES = 1 << 18
_WINDOW = 5  # Lines of ``rank_times.jsonl`` that determine the slowest rank: fifty steps, as for the warning.
_PRINTED = 3  # Last lines of the slowest rank that are shown.


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNow:
    """The memory of the rank with the highest peak in the newest sampled step."""

    rank: int | None  # That rank; None if only the maximum over ranks is known.
    step: int | None  # The sampled step; None if only the first steps were measured.
    phase: str  # The phase of its peak.
    allocated_bytes: int  # Allocated bytes at that peak.
    predicted_bytes: int | None  # The peak that the plan predicts.
    capacity_bytes: int | None  # What a rank may use.
    piles: Mapping[str, int]  # The peak by pile, if it was measured by pile.


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowestRank:
    """The rank whose own work takes longest."""

    rank: int  # Of the job.
    slower: float | None  # Its time over the median of all ranks, less one.
    log: str | None  # The file that it wrote to last.
    lines: tuple[str, ...]  # The last lines of that file.


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """Live figures of a run, in addition to its state."""

    queue: Waiting | None  # The place in Slurm's queue of a run that waits.
    recent: tuple[JsonObject, ...]  # Step, loss and tokens a second of the last lines of metrics.
    predicted_tokens_per_second: float | None  # Predicted speed of all ranks together.
    memory: MemoryNow | None  # Memory of the worst rank.
    slowest: SlowestRank | None  # The slowest rank, and what it printed last.

    def as_dict(self) -> JsonObject:
        """The keys that it adds to a row of ``status --json``."""
        return asdict(self)


def read(rows: Sequence[RunState]) -> list[Live]:
    """The live figures of runs whose states are known; asks Slurm once if any run waits for it."""
    waits = [row.job_id for row in rows if row.job_id is not None and row.state in ("queued", "requeued")]
    places = jobs.waiting(waits)
    return [of_files(row, places.get(row.job_id or "")) for row in rows]


def of_files(row: RunState, queue: Waiting | None = None) -> Live:
    """The live figures of a run from its files alone; ``queue`` is its place in the queue, if known."""
    run = Path(row.directory)
    speed = results.predicted_speed(run)
    return Live(
        queue=queue,
        recent=tuple(map(_point, results.newest(run, RECENT))),
        predicted_tokens_per_second=None if speed is None else speed.tokens_per_second,
        memory=_memory(run),
        slowest=_slowest(run),
    )


def _point(row: Mapping[str, Any]) -> JsonObject:
    speed = None if row.get("followed") else results.number(row, "tokens_per_second")
    return {"step": row["step"], "loss": results.number(row, "loss"), "tokens_per_second": speed}


def _memory(run: Path) -> MemoryNow | None:
    newest = newest_records(run)
    peaks = [(peak.allocated_bytes, phase, record) for record in newest for phase, peak in record.phases.items()]
    measured = results.measured(run)
    measured.pop(results.BETWEEN, None)
    if peaks:
        size, phase, record = max(peaks, key=lambda found: found[0])
        rank, step, piles, capacity = record.rank, record.step, dict(record.phases[phase].piles), record.device_bytes
    elif measured:  # Only the first steps were measured: the run does not sample later ones.
        phase = max(measured, key=lambda name: measured[name])
        size, rank, step, piles, capacity = measured[phase], None, None, {}, None
    else:
        return None
    spec = None if capacity is not None else contents.known_spec(run)
    return MemoryNow(
        rank=rank,
        step=step,
        phase=phase,
        allocated_bytes=size,
        predicted_bytes=results.predicted_peak(run),
        capacity_bytes=spec.rank_memory_bytes if capacity is None and spec is not None else capacity,
        piles=piles,
    )


def newest_records(run: Path) -> list[MemoryRecord]:
    """The lines of ``memory.jsonl`` of the last step sampled during training, one per rank."""
    found: dict[int, MemoryRecord] = {}
    for record in memory.newest(run):
        if record.trained:
            if any(record.step != other.step for other in found.values()):
                found = {}
            found[record.rank] = record
    return list(found.values())


def _slowest(run: Path) -> SlowestRank | None:
    rows = _newest_times(run)
    if not rows or len({len(times) for times in rows}) != 1:
        return None
    means = [statistics.fmean(each) for each in zip(*rows, strict=True)]
    rank = max(range(len(means)), key=lambda each: means[each])
    median = statistics.median_low(means)
    printed = output.of_rank(run, rank)
    log = max(printed.ranks, key=lambda path: path.stat().st_mtime_ns, default=None) if printed else None
    return SlowestRank(
        rank=rank,
        slower=round(means[rank] / median - 1, 4) if median > 0 else None,
        log=None if log is None else str(log),
        lines=() if log is None else tuple(output.tail(log, _PRINTED)),
    )


def _newest_times(run: Path) -> list[list[float]]:
    found = []
    for row in files.json_objects(files.last_lines(run / _TIMES, _END_BYTES)[-_WINDOW:]):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            found.append([float(each) for each in row["seconds"]])
    return [times for times in found if times]
