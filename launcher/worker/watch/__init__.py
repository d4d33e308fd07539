"""``memory.jsonl``: the measured memory of every rank, a line each, by phase and pile, beside the host's.

A line is of the loading of the model (step 0), of the first two steps, and of every ``train.log_memory_every``-th; the
first checkpoint and the first evaluation add a line of their own. Rank 0 writes for all. A run that goes on from a
checkpoint first cuts the lines of steps that it will do again, as it does with ``metrics.jsonl``. Each rank watches its
own samples for what grows (``launcher.worker.watch.growth``), and rank 0 says so as an event.
"""

from __future__ import annotations

import contextlib
import json
import resource
import time

import torch
import torch.distributed as dist

from launcher.base import machine
from launcher.job import events
from launcher.job.memory import RECORDS, HostMemory, MemoryRecord
from launcher.worker import files
from launcher.worker.engine import Context
from launcher.worker.watch.growth import Growth, Watch


class MemoryLog:
    """The lines of one run; every method is called by all ranks together."""

    def __init__(self, context: Context, *, resumed_at: int) -> None:
        self._context, self._every = context, context.spec.train.log_memory_every
        self._path = context.directory / RECORDS
        self._watch = Watch()
        self._said: tuple[str, str] | None = None
        self.rewind(resumed_at)

    def due(self, step: int) -> bool:
        """True if a step behind the first ones is measured: each, where all of them are followed anyway."""
        if self._context.spec.train.enforce_memory and self._context.device.type == "cpu":
            return True
        return self._every is not None and step % self._every == 0

    def rewind(self, step: int) -> None:
        """Cut the lines of steps that will be done again, from a checkpoint of ``step``."""
        self._watch.rewind()
        if self._context.rank == 0:
            with contextlib.suppress(OSError):
                files.cut(self._path, step)

    def write(self, step: int, tokens: int | None = None) -> None:
        """Gather what the ranks have measured since the last call, and write it down.

        Args:
            step: That was done; 0 while the model was loaded.
            tokens: Of this rank's micro-batch.
        """
        record = self._context.memory.last = self._record(step, tokens)
        own = (record, [growth for growth in self._watch.add(record) if growth.matters(self._context.spec.steps)])
        gathered: list[tuple[MemoryRecord, list[Growth]]] | None = None
        if self._context.rank == 0:
            gathered = [own] * self._context.world
        dist.gather_object(own, gathered)
        if gathered is None:
            return
        lines = "".join(json.dumps(each.as_dict()) + "\n" for each, _ in gathered)
        with contextlib.suppress(OSError), self._path.open("a") as file:  # No reason to end a job that trains.
            file.write(lines)
        if record.static is not None:
            self._warn(step, [growth for _, found in gathered for growth in found[:1]])

    def _warn(self, step: int, found: list[Growth]) -> None:
        """Say what grows, where that is news, and when it no longer does; of several ranks the first that is full."""
        worst = min(found, key=lambda growth: (growth.full_at is None, growth.full_at or 0), default=None)
        key = None if worst is None else (worst.where, worst.pile)
        if key == self._said:
            return
        directory, self._said = self._context.directory, key
        if worst is None:
            events.add(directory, "memory_growth", "memory grows no longer", step=step, over=True)
            return
        ranks = sorted({growth.rank for growth in found if (growth.where, growth.pile) == key})
        text = worst.sentence(self._context.spec.steps)
        if len(ranks) > 1 and worst.where != "node":
            text += f"; so it does on {len(ranks)} ranks"
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
        used, total = device_memory(self._context)
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


def device_memory(context: Context) -> tuple[int | None, int | None]:
    """Bytes in use on the whole device by all processes, and that a rank may use there; on the CPU its budget alone."""
    if context.device.type == "cpu":
        return None, context.spec.hardware.memory_bytes
    free, total = torch.cuda.mem_get_info(context.device)
    limit = context.spec.rank_memory_bytes if context.spec.train.enforce_memory else None
    return total - free, total if limit is None else min(total, limit)


def host_memory() -> HostMemory:
    """Of this process and its node, now; where Linux does not tell, the process's highest."""
    own, node = machine.process_memory(), machine.memory_in_use()
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # KiB on Linux (getrusage(2)).
    return HostMemory(
        rank_bytes=highest if own is None else own,
        node_used_bytes=None if node is None else node[0],
        node_bytes=None if node is None else node[1],
    )


def tokens_of(micro_batches: list[torch.Tensor]) -> int | None:
    """Inputs of the largest micro-batch; each row has one token more, the last label."""
    return max((rows.shape[0] * (rows.shape[1] - 1) for rows in micro_batches), default=None)
