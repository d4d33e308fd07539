"""SIGTERM and SIGUSR2 ask the job to end early: finish the step, save, exit 0."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from types import FrameType

import torch
import torch.distributed as dist

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
"""Torchrun and schedulers send SIGTERM; submitit and Slurm's ``--signal`` send SIGUSR2 ahead of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """The same on all ranks: whether any was asked to stop, and whether any still writes a checkpoint."""

    stop: bool
    writing: bool


class Agreement:
    """Decisions that all ranks must take alike, asked before a step and answered after it.

    The two flags travel in one maximum over CPU tensors that runs beside the step, so it costs no time and never
    waits for a GPU.
    """

    def __init__(self) -> None:
        self._stop = False
        self._flags = torch.zeros(2, dtype=torch.int32)
        self._work: dist.Work | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._stop = True

    def ask(self, *, writing: bool) -> None:
        """Start to ask all ranks; ``writing`` is whether this one's part of a checkpoint is not on disk yet."""
        self._flags = torch.tensor([self._stop, writing], dtype=torch.int32)
        self._work = dist.all_reduce(self._flags, op=dist.ReduceOp.MAX, async_op=True)

    def answer(self) -> Agreed:
        """The flags of all ranks as of when :meth:`ask` was called."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        stop, writing = self._flags.tolist()
        return Agreed(stop=bool(stop), writing=bool(writing))
