"""A rank's side of the hang watch: what it does now, and its stacks and collectives when the node asks for them.

A phase costs one write of 40 bytes into memory. Stacks are written by ``faulthandler`` in the signal's own handler,
which needs no lock of Python's, so they come also from a rank that waits inside of a library. Collectives come from
torch's flight recorder, which keeps the newest of gloo and NCCL anyway, by a thread of its own; a rank that is stopped,
or that holds Python's lock for ever, cannot answer, and the node then says so.
"""

from __future__ import annotations

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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from launcher.job import beat as shared
from launcher.worker import files

STACK_SIGNAL = signal.SIGUSR1
"""SIGUSR2 and SIGTERM ask for the end of the job (``launcher.worker``); nobody else takes this one."""

_LOOK_S = 0.5
_KEPT = 32
"""Durations of which the median is taken."""

_SHOWN = 16
"""Collectives that are handed on."""


class Beat:
    """What this rank does now; says nothing where no node watches it."""

    def __init__(self, rank: int = 0, folder: Path | None = None) -> None:
        """Begin to beat, in the phase ``start``.

        Args:
            rank: Of the job.
            folder: Of the node's ranks; None where nobody watches.
        """
        self._rank, self._buffer, self._step, self._kind, self._phase = rank, None, 0, "start", "start"
        self._seconds: dict[str, collections.deque[float]] = {}
        self._began = self._usual = 0.0
        if folder is not None:
            self._buffer = _mapped(folder, rank)
            threading.Thread(target=_answer, args=(self._buffer, folder, rank), daemon=True).start()
            self._begin("start", "start")

    def step(self, step: int) -> None:
        """A step begins, with its data; what was before is over."""
        self._step = step
        self._begin("step", "data")

    @property
    def doing(self) -> tuple[int, str | None]:
        """The step (0 before the first), and the phase by its name in records of memory."""
        return self._step, shared.MEMORY_PHASES.get(self._phase)

    def begin(self, phase: str) -> None:
        """What follows a step begins: the next batch of an evaluation, a checkpoint, or the end."""
        self._begin(phase, phase)

    def enter(self, phase: str) -> None:
        """The step comes into a phase; an evaluation's passes are the evaluation's."""
        if self._kind == "step" and phase in shared.PHASES:
            self._phase = phase
            if self._buffer is not None:
                self._put(phase, time.monotonic())

    def each[Item](self, batches: Iterable[Item]) -> Iterator[Item]:
        """The batches of an evaluation, each of which is a sign of life."""
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
        taken = self._seconds.get(kind)
        self._usual = statistics.median(taken) if taken else 0.0
        self._put(phase, now)

    def _put(self, phase: str, now: float) -> None:
        if self._buffer is not None:
            line = shared.Beat(
                rank=self._rank,
                pid=os.getpid(),
                step=self._step,
                phase=phase,
                began=self._began,
                entered=now,
                usual=self._usual,
            )
            shared.put(self._buffer, line)


def started() -> Beat:
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


_files: list[Any] = []
"""The signal handler writes into the descriptor, so its file must stay open."""


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
    """Write down the newest collectives each time that the node asks."""
    answered = buffer[shared.ASKED]
    while True:
        time.sleep(_LOOK_S)
        asked = buffer[shared.ASKED]
        if asked != answered:
            answered = asked
            with contextlib.suppress(OSError):
                content = {"asked": asked, "collectives": recorded()}
                files.write_json(shared.collectives(folder, rank), content)


def recorded() -> list[dict[str, Any]]:
    """The newest collectives of this rank, oldest first: name, group, number, sizes and whether it is done."""
    found = []
    for backend in ("gloo", "nccl"):
        with contextlib.suppress(Exception):  # A build without the backend, or a recorder that is switched off.
            raw = torch._C._distributed_c10d._dump_fr_trace_json(True, False, backend)
            found += json.loads(raw).get("entries", [])
    found.sort(key=lambda entry: entry.get("time_created_ns", 0))
    return [_short(entry) for entry in found[-_SHOWN:]]


def _short(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": entry.get("profiling_name"),
        "group": entry.get("process_group", ["", ""])[-1],
        "number": entry.get("p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id"),
        "sizes": entry.get("input_sizes"),
        "done": bool(entry.get("retired")),
    }
