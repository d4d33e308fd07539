"""How long each rank works by itself: synchronous ranks all take as long as the slowest, so steps tell none apart.

Measured are the time in which a rank gets its micro-batches, and the forward passes of its transformer blocks, which
lie between the collectives of DDP, FSDP, ZeRO 0 to 2 and pipelines: on the CPU by the clock, on a GPU by two events a
block on its stream, read when they are over, so that nothing waits. Communication inside of a block (tensor, context
and expert parallel parts, ZeRO 3's gathering) counts with it, and with it the wait for its partners: then these are
slow together. Backward passes are left out: their collectives run beside them. Megatron-LM's loop is not measured.

Every ten steps all ranks tell each other their mean (``rank_times.jsonl``). A rank is slow that took 20% more than the
median of the ranks of its pipeline stage over 50 steps, until it no longer does.
"""

from __future__ import annotations

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
from launcher.spec import RunSpec
from launcher.worker.engine import Context

FILE = "rank_times.jsonl"
EVERY = 10
_STEPS = 50
_SLOW = 1.2
"""A rank that takes a fifth longer, over fifty steps, makes the whole job a fifth slower."""


class Pace:
    """The times of all ranks; every method is called by all of them together."""

    def __init__(self, context: Context) -> None:
        self._context, self._data, self._since = context, 0.0, 0
        self._recent: deque[list[float]] = deque(maxlen=_STEPS // EVERY)
        self._slow: set[int] = set()
        self._hosts = [""] * context.world
        if context.world > 1:
            dist.all_gather_object(self._hosts, machine.node())

    def timed[Item](self, batches: Iterable[Item]) -> Iterator[Item]:
        """The same batches; the time in which this rank gets them is its own."""
        began = time.perf_counter()
        for batch in batches:
            self._data += time.perf_counter() - began
            yield batch
            began = time.perf_counter()

    def step(self, step: int) -> None:
        """A step is done; now and then the ranks tell each other their times, on the host."""
        self._since += 1
        if step % EVERY or self._context.world == 1:
            return
        times = torch.zeros(self._context.world, dtype=torch.float64)
        times[self._context.rank] = (self._data + self._context.clock.taken()) / self._since
        self._data, self._since = 0.0, 0
        dist.all_reduce(times)
        if self._context.rank == 0:
            self._note(step, times.tolist())

    def _note(self, step: int, times: list[float]) -> None:
        self._recent.append(times)
        line = json.dumps({"step": step, "seconds": [round(each, 6) for each in times]}) + "\n"
        with (
            contextlib.suppress(OSError),
            (self._context.directory / FILE).open("a") as file,
        ):  # No reason to end a job.
            file.write(line)
        if len(self._recent) == self._recent.maxlen:
            means = [statistics.fmean(each) for each in zip(*self._recent, strict=True)]
            self._say(step, slow(self._context.spec, means))

    def _say(self, step: int, found: dict[int, float]) -> None:
        directory = self._context.directory
        for rank in found.keys() - self._slow:
            text = (
                f"rank {rank} on {self._hosts[rank]} is slow: over {_STEPS} steps its own work took "
                f"{found[rank]:.0%} longer than the median of the ranks beside it"
            )
            events.add(directory, "straggler", text, step=step, rank=rank, host=self._hosts[rank])
        for rank in self._slow - found.keys():
            text = f"rank {rank} on {self._hosts[rank]} is no longer slow"
            events.add(directory, "straggler", text, step=step, over=True, rank=rank, host=self._hosts[rank])
        self._slow = set(found)


def slow(spec: RunSpec, means: list[float]) -> dict[int, float]:
    """Ranks that take 20% longer than the median of those of their pipeline stage, and by how much.

    The median of an even number is the lower one: of two ranks the faster is what the other is compared with.

    Args:
        spec: The run.
        means: Seconds of each rank.
    """
    size = len(means) // spec.parallel.pipeline
    found = {}
    for rank, mean in enumerate(means):
        stage = means[rank // size * size :][:size]
        median = statistics.median_low(stage)
        if median > 0 and mean > _SLOW * median:
            found[rank] = mean / median - 1
    return found
