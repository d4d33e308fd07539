"""A rank's side of the hang watch, and the time of its own work.

A phase costs one write of 40 bytes into memory. Stacks are written by ``faulthandler`` in the signal's own handler,
which needs no lock of Python's, so they come also from a rank that waits inside of a library. Collectives come from
torch's flight recorder by a thread of its own.
"""

import collections
import contextlib
import faulthandler
import json
import mmap
import os
import signal
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from launcher.base.files import JsonObject, write_atomically
from launcher.job import beat as shared

STACK_SIGNAL = signal.SIGUSR1
"""SIGUSR2 and SIGTERM ask for the end of the job (``launcher.worker``); nobody else takes this one."""

_LOOK_S = 0.5
_KEPT = 32  # Durations whose median is the usual one.
_SHOWN = 16  # Collectives that are handed on.


class Beat:
    """Tells the node what this rank does; silent where no node watches it."""

    def __init__(self, rank: int = 0, folder: Path | None = None) -> None:
        """Begin to beat, in the phase ``start``; ``folder`` is the node's, None where nobody watches."""
        self._rank, self._buffer, self._step, self._kind, self._phase = rank, None, 0, "start", "start"
        self._seconds: dict[str, collections.deque[float]] = {}
        self._began = self._usual = 0.0
        if folder is not None:
            self._buffer = _mapped(folder, rank)
            threading.Thread(target=_answer, args=(self._buffer, folder, rank), daemon=True).start()
            self._begin("start", "start")

    def step(self, step: int) -> None:
        """Begin a step, with its data."""
        self._step = step
        self._begin("step", "data")

    @property
    def doing(self) -> tuple[int, str | None]:
        """The step (0 before the first), and the phase by its name in records of memory."""
        return self._step, shared.MEMORY_PHASES.get(self._phase)

    def begin(self, phase: str) -> None:
        """Begin what follows a step: the next batch of an evaluation, a checkpoint, or the end."""
        self._begin(phase, phase)

    def enter(self, phase: str) -> None:
        """Enter a phase of the step; an evaluation's passes are the evaluation's."""
        if self._kind == "step" and phase in shared.PHASES:
            self._phase = phase
            self._put(time.monotonic())

    def each[Item](self, batches: Iterable[Item]) -> Iterator[Item]:
        """Hand on the batches of an evaluation; each is a sign of life."""
        for batch in batches:
            self.begin("evaluation")
            yield batch

    def _begin(self, kind: str, phase: str) -> None:
        before, self._kind, self._phase = self._kind, kind, phase
        if self._buffer is None:
            return
        now = time.monotonic()
        if self._began:
            self._seconds.setdefault(before, collections.deque(maxlen=_KEPT)).append(now - self._began)
        self._began = now
        earlier = self._seconds.get(kind)
        self._usual = statistics.median(earlier) if earlier else 0.0
        self._put(now)

    def _put(self, now: float) -> None:
        if self._buffer is not None:
            line = shared.Beat(
                rank=self._rank,
                pid=os.getpid(),
                step=self._step,
                phase=self._phase,
                began=self._began,
                entered=now,
                usual=self._usual,
            )
            shared.put(self._buffer, line)


def start() -> Beat:
    """This rank's heartbeat, where a node watches; its stacks can be asked for from now on."""
    folder, rank = os.environ.get(shared.FOLDER), int(os.environ.get("RANK", "0"))
    if folder is None or not Path(folder).is_dir():
        return Beat()
    try:
        file = shared.stack(Path(folder), rank).open("ab")
        faulthandler.register(STACK_SIGNAL, file=file, all_threads=True)
        _files.append(file)
        return Beat(rank, Path(folder))
    except OSError:  # The node's memory is full: a rank trains without being watched.
        return Beat()


_files: list[Any] = []  # The signal handler writes into the descriptor, so its file must stay open.


def _mapped(folder: Path, rank: int) -> memoryview:
    """The rank's file, which appears with its head: from then on the node may send the signal."""
    final = shared.path(folder, rank)
    temporary = final.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(shared.head(rank, os.getpid()))
    with temporary.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), shared.SIZE)
    temporary.replace(final)
    return memoryview(mapped)


def _answer(buffer: memoryview, folder: Path, rank: int) -> None:
    answered = buffer[shared.ASKED]
    while True:
        time.sleep(_LOOK_S)
        asked = buffer[shared.ASKED]
        if asked != answered:
            answered = asked
            with contextlib.suppress(OSError):
                content = {"asked": asked, "collectives": newest_collectives()}
                write_atomically(shared.collectives(folder, rank), content)


def newest_collectives() -> list[JsonObject]:
    """The newest collectives of this rank, oldest first: name, group, number, sizes and whether it is done."""
    found = []
    for backend in ("gloo", "nccl"):
        with contextlib.suppress(Exception):  # A build without the backend, or a recorder that is switched off.
            raw = torch._C._distributed_c10d._dump_fr_trace_json(True, False, backend)
            found += json.loads(raw).get("entries", [])
    found.sort(key=lambda entry: entry.get("time_created_ns", 0))
    return [_short(entry) for entry in found[-_SHOWN:]]


def _short(entry: JsonObject) -> JsonObject:
    return {
        "name": entry.get("profiling_name"),
        "group": entry.get("process_group", ["", ""])[-1],
        "number": entry.get("p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id"),
        "sizes": entry.get("input_sizes"),
        "done": bool(entry.get("retired")),
    }


@dataclass(slots=True)
class Clock:
    """The seconds that a rank's blocks take in forward passes; made before the engine, which hands it the blocks."""

    on: bool = False  # False where nobody asks: alone there is nobody to compare with, and a trace runs on no device.
    seconds: float = 0.0  # Taken since the last question.
    began: float = 0.0  # The pass that runs now, on the CPU.
    # On a GPU the events around each pass that were not read yet.
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

    def take_seconds(self) -> float:
        """Seconds since the last call; passes that a GPU has not done yet count the next time."""
        while self.waiting and self.waiting[0][1] is not None and self.waiting[0][1].query():
            begin, end = self.waiting.popleft()
            self.seconds += begin.elapsed_time(end) / 1000  # It is in milliseconds.
        seconds, self.seconds = self.seconds, 0.0
        return seconds
