"""A rank's side of the hang watch: its heartbeat, stacks and collectives; and the clock of its own compute.

Entering a phase costs one 40-byte write to memory. ``faulthandler`` writes stacks in the signal handler itself, which
does not need the GIL, so a rank that waits inside a library answers, too. A thread reads collectives from torch's
flight recorder.
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
"""SIGUSR2 and SIGTERM ask the job to stop (``launcher.worker``); nothing else uses this one."""

_LOOK_S = 0.5  # Interval at which the thread looks for a question from the node.
_KEPT = 32  # Newest durations, whose median is the usual duration.
_SHOWN = 16  # Newest collectives reported to the node.


class HeartbeatWriter:
    """Reports this rank's progress to the node; silent if no node watches it."""

    def __init__(self, rank: int = 0, folder: Path | None = None) -> None:
        """Start the heartbeat in the phase ``start``; ``folder`` is the node's, None if nobody watches."""
        self._rank, self._buffer, self._step, self._kind, self._phase = rank, None, 0, "start", "start"
        self._seconds: dict[str, collections.deque[float]] = {}
        self._began = self._usual = 0.0
        if folder is not None:
            self._buffer = _mapped(folder, rank)
            threading.Thread(target=_answer, args=(self._buffer, folder, rank), daemon=True).start()
            self._begin("start", "start")

    def step(self, step: int) -> None:
        """Begin a step, in its phase ``data``."""
        self._step = step
        self._begin("step", "data")

    @property
    def doing(self) -> tuple[int, str | None]:
        """The step (0 before the first), and the phase as memory records name it."""
        return self._step, shared.MEMORY_PHASES.get(self._phase)

    def begin(self, phase: str) -> None:
        """Begin work after a step: the next batch of an evaluation, a checkpoint, or the end."""
        self._begin(phase, phase)

    def enter(self, phase: str) -> None:
        """Enter a phase of the step; passes of an evaluation stay in the phase ``evaluation``."""
        if self._kind == "step" and phase in shared.PHASES:
            self._phase = phase
            self._put(time.monotonic())

    def each[Item](self, batches: Iterable[Item]) -> Iterator[Item]:
        """Yield the batches of an evaluation, with a heartbeat for each."""
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
            line = shared.Heartbeat(
                rank=self._rank,
                pid=os.getpid(),
                step=self._step,
                phase=self._phase,
                began=self._began,
                entered=now,
                usual=self._usual,
            )
            shared.put(self._buffer, line)


def start() -> HeartbeatWriter:
    """Start this rank's heartbeat if a node watches it; from now on the node can ask for its stacks."""
    folder, rank = os.environ.get(shared.FOLDER), int(os.environ.get("RANK", "0"))
    if folder is None or not Path(folder).is_dir():
        return HeartbeatWriter()
    try:
        file = shared.stack(Path(folder), rank).open("ab")
        faulthandler.register(STACK_SIGNAL, file=file, all_threads=True)
        _files.append(file)
        return HeartbeatWriter(rank, Path(folder))
    except OSError:  # The node's memory is full: the rank trains unwatched.
        return HeartbeatWriter()


_files: list[Any] = []  # The signal handler writes into the descriptor, so its file must stay open.


def _mapped(folder: Path, rank: int) -> memoryview:
    """The rank's memory-mapped file, created with its header: from then on the node may send the signal."""
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
    """The newest collectives of this rank, oldest first: name, group, sequence number, sizes and whether done."""
    found = []
    for backend in ("gloo", "nccl"):
        with contextlib.suppress(Exception):  # A build without the backend, or a flight recorder that is off.
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
class BlockTimer:
    """Seconds that a rank's blocks spend in forward passes; made before the engine, which registers the blocks."""

    on: bool = False  # False for one rank, which has none to compare with, and for a trace, which has no device.
    seconds: float = 0.0  # Spent since the last call of :meth:`take_seconds`.
    began: float = 0.0  # Start of the current pass, on the CPU.
    # On a GPU: the events around each pass whose time was not read yet.
    waiting: deque[tuple[Any, Any]] = field(default_factory=deque)

    def follow(self, blocks: Iterable[nn.Module], device: torch.device) -> None:
        """Time each forward pass of a block in training; recomputation does not call these hooks and is not counted."""
        if not self.on:
            return
        begin, end = (self._begin, self._end) if device.type == "cpu" else (self._begin_cuda, self._end_cuda)
        for block in blocks:
            block.register_forward_pre_hook(begin)  # After FSDP2's own hook, which waits for the parameters.
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
        """Return the seconds since the last call; passes that a GPU has not finished count in the next call."""
        while self.waiting and self.waiting[0][1] is not None and self.waiting[0][1].query():
            begin, end = self.waiting.popleft()
            self.seconds += begin.elapsed_time(end) / 1000  # ``elapsed_time`` is in milliseconds.
        seconds, self.seconds = self.seconds, 0.0
        return seconds
