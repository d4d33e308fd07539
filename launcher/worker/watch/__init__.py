"""Monitoring of a training run: the memory of all ranks, and the time of each rank's own work.

``memory.jsonl`` has a line per rank for loading the model (step 0), for the first two steps, and for every
``train.log_memory_every``-th; the first checkpoint and the first evaluation add one. Rank 0 writes for all.

Synchronous ranks all take as long as the slowest one, so step times do not identify it. Instead each rank times getting
its micro-batches and the forward passes of its blocks, which lie between the collectives of DDP, FSDP, ZeRO 0 to 2 and
pipelines. Communication inside a block counts as its time: then the partners are slow together. Megatron-LM's loop is
not measured. A rank is slow if it took 20% more than the median of its pipeline stage over 50 steps.
"""

import contextlib
import json
import statistics
import time
from collections import deque
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist

from launcher.base import machine
from launcher.job import events
from launcher.job.memory import RECORDS, MemoryRecord, host_memory
from launcher.spec import RunSpec
from launcher.worker import files
from launcher.worker.engine import Context
from launcher.worker.watch.growth import Growth, GrowthDetector, fills_first

FILE = "rank_times.jsonl"
EVERY = 10  # Steps between two exchanges of times.
_STEPS = 50  # Steps over which a rank is judged.
_SLOW = 1.2  # Times the median: such a rank makes the whole job 20% slower.


class MemoryLog:
    """Writes ``memory.jsonl`` of one run; every method is called by all ranks together."""

    def __init__(self, context: Context, *, resumed_at: int) -> None:
        self._context, self._every = context, context.spec.train.log_memory_every
        self._path = context.directory / RECORDS
        self._watch = GrowthDetector()
        self._reported: tuple[str, str] | None = None
        self.rewind(resumed_at)

    def due(self, step: int) -> bool:
        """True if a step after the first ones is measured: every step if all of them are tracked anyway."""
        if self._context.spec.train.enforce_memory and self._context.device.type == "cpu":
            return True
        return self._every is not None and step % self._every == 0

    def rewind(self, step: int) -> None:
        """Remove the lines after ``step``, the checkpoint's step: those steps will be repeated."""
        self._watch.rewind()
        if self._context.rank == 0:
            with contextlib.suppress(OSError):
                files.cut(self._path, step)

    def write(self, step: int, tokens: int | None = None) -> None:
        """Gather the ranks' measurements since the last call and write them; step 0 is the loading of the model."""
        record = self._context.memory.last = self._record(step, tokens)
        own = (record, [growth for growth in self._watch.add(record) if growth.matters(self._context.spec.steps)])
        gathered: list[tuple[MemoryRecord, list[Growth]]] | None = None
        if self._context.rank == 0:
            gathered = [own] * self._context.world
        dist.gather_object(own, gathered)
        if gathered is None:
            return
        lines = "".join(json.dumps(each.as_dict()) + "\n" for each, _ in gathered)
        with contextlib.suppress(OSError), self._path.open("a") as file:  # A failed write must not end the job.
            file.write(lines)
        if record.static is not None:
            self._warn(step, [growth for _, found in gathered for growth in found[:1]])

    def _warn(self, step: int, found: list[Growth]) -> None:
        worst = min(found, key=fills_first, default=None)
        key = None if worst is None else (worst.where, worst.pile)
        if key == self._reported:
            return
        directory, self._reported = self._context.directory, key
        if worst is None:
            events.add(directory, "memory_growth", "memory no longer grows", step=step, over=True)
            return
        ranks = sorted({growth.rank for growth in found if (growth.where, growth.pile) == key})
        text = worst.sentence(self._context.spec.steps)
        if len(ranks) > 1 and worst.where != "node":
            text += f"; the same on {len(ranks)} ranks in all"
        events.add(
            directory,
            "memory_growth",
            text,
            step=step,
            where=worst.where,
            pile=worst.pile or None,
            ranks=ranks,
            bytes_per_step=worst.bytes_per_step,
            full_at=worst.full_at,
        )

    def _record(self, step: int, tokens: int | None) -> MemoryRecord:
        sample = self._context.memory.take()
        used, total = _device_memory(self._context)
        return MemoryRecord(
            step=step,
            rank=self._context.rank,
            node=machine.node(),
            time=round(time.time(), 3),
            tokens=tokens,
            phases=sample.phases,
            static=sample.static,
            reserved_bytes=sample.reserved_bytes,
            device_used_bytes=used,
            device_bytes=total,
            host=host_memory(),
        )


def _device_memory(context: Context) -> tuple[int | None, int | None]:
    """Bytes in use on the device by all processes, and bytes that a rank may use; on the CPU only the latter."""
    if context.device.type == "cpu":
        return None, context.spec.hardware.memory_bytes
    free, total = torch.cuda.mem_get_info(context.device)
    limit = context.spec.rank_memory_bytes if context.spec.train.enforce_memory else None
    return total - free, total if limit is None else min(total, limit)


def tokens_of(micro_batches: list[torch.Tensor]) -> int | None:
    """Input tokens of the largest micro-batch; each row has one more token, the last label."""
    return max((rows.shape[0] * (rows.shape[1] - 1) for rows in micro_batches), default=None)


class SlowRankDetector:
    """Compares the ranks' own times and reports slow ranks; every method is called by all ranks together."""

    def __init__(self, context: Context) -> None:
        self._context, self._data, self._since = context, 0.0, 0
        self._recent: deque[list[float]] = deque(maxlen=_STEPS // EVERY)
        self._slow: set[int] = set()
        self._hosts = [""] * context.world
        if context.world > 1:
            dist.all_gather_object(self._hosts, machine.node())

    def timed[Item](self, batches: Iterable[Item]) -> Iterator[Item]:
        """Yield the batches, and count the time to get each as this rank's own."""
        began = time.perf_counter()
        for batch in batches:
            self._data += time.perf_counter() - began
            yield batch
            began = time.perf_counter()

    def step(self, step: int) -> None:
        """Record that a step is done; every ten steps the ranks exchange their times, on the host."""
        self._since += 1
        if step % EVERY or self._context.world == 1:
            return
        times = torch.zeros(self._context.world, dtype=torch.float64)
        times[self._context.rank] = (self._data + self._context.clock.take_seconds()) / self._since
        self._data, self._since = 0.0, 0
        dist.all_reduce(times)
        if self._context.rank == 0:
            self._note(step, times.tolist())

    def _note(self, step: int, times: list[float]) -> None:
        self._recent.append(times)
        line = json.dumps({"step": step, "seconds": [round(each, 6) for each in times]}) + "\n"
        path = self._context.directory / FILE
        with contextlib.suppress(OSError), path.open("a") as file:  # A failed write must not end the job.
            file.write(line)
        if len(self._recent) == self._recent.maxlen:
            means = [statistics.fmean(each) for each in zip(*self._recent, strict=True)]
            self._report(step, slow(self._context.spec, means))

    def _report(self, step: int, found: dict[int, float]) -> None:
        directory = self._context.directory
        for rank in found.keys() - self._slow:
            text = (
                f"rank {rank} on {self._hosts[rank]} is slow: over {_STEPS} steps its own work took "
                f"{found[rank]:.0%} longer than the median of the ranks in its pipeline stage"
            )
            events.add(directory, "straggler", text, step=step, rank=rank, host=self._hosts[rank])
        for rank in self._slow - found.keys():
            text = f"rank {rank} on {self._hosts[rank]} is no longer slow"
            events.add(directory, "straggler", text, step=step, over=True, rank=rank, host=self._hosts[rank])
        self._slow = set(found)


def slow(spec: RunSpec, means: list[float]) -> dict[int, float]:
    """Ranks that take 20% longer than the (lower) median of their pipeline stage, and by what fraction."""
    size = len(means) // spec.parallel.pipeline
    found = {}
    for rank, mean in enumerate(means):
        median = statistics.median_low(means[rank // size * size :][:size])
        if median > 0 and mean > _SLOW * median:
            found[rank] = mean / median - 1
    return found
