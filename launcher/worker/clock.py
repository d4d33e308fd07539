"""The time that a rank's own work takes: the forward passes of its blocks (see ``watch.pace``)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass(slots=True)
class Clock:
    """What a rank's blocks take in their forward passes; made before the engine, which hands it the blocks.

    Attributes:
        on: False where nobody asks: alone there is nobody to compare with, and a trace runs on no device.
        seconds: Taken since the last question.
        began: The pass that runs now, on the CPU.
        waiting: On a GPU the events around each pass that were not read yet.
    """

    on: bool = False
    seconds: float = 0.0
    began: float = 0.0
    waiting: deque[tuple[Any, Any]] = field(default_factory=deque)

    def follow(self, blocks: Iterable[nn.Module], device: torch.device) -> None:
        """Take the time of each training pass through a block; recomputation goes another way, and does not count."""
        if not self.on:
            return
        begin, end = (self._begin, self._end) if device.type == "cpu" else (self._begin_cuda, self._end_cuda)
        for block in blocks:
            block.register_forward_pre_hook(begin)  # Behind FSDP2's own, which waits for the parameters.
            block.register_forward_hook(end, prepend=True)

    def _begin(self, block: nn.Module, inputs: object) -> None:
        self.began = time.perf_counter()

    def _end(self, block: nn.Module, inputs: object, output: object) -> None:
        if torch.is_grad_enabled():
            self.seconds += time.perf_counter() - self.began

    def _begin_cuda(self, block: nn.Module, inputs: object) -> None:
        if torch.is_grad_enabled():
            begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            begin.record()
            self.waiting.append((begin, None))

    def _end_cuda(self, block: nn.Module, inputs: object, output: object) -> None:
        if torch.is_grad_enabled() and self.waiting:
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end.record()
            self.waiting[-1] = (self.waiting[-1][0], end)

    def taken(self) -> float:
        """Seconds since the last call; passes that a GPU has not done yet count the next time."""
        while self.waiting and self.waiting[0][1] is not None and self.waiting[0][1].query():
            begin, end = self.waiting.popleft()
            self.seconds += begin.elapsed_time(end) / 1000  # It is in milliseconds.
        seconds, self.seconds = self.seconds, 0.0
        return seconds
