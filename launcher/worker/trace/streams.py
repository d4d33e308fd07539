"""Streams for a device that has none, so that the side streams of a GPU and their memory pools can be told apart."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


class Stream:
    """Stands for ``torch.cuda.Stream``: it has a number, and nobody waits."""

    device_index = 0
    device_type = 0

    def __init__(self, number: int) -> None:
        self.stream_id = number

    def wait_stream(self, stream: Any) -> None:
        """Nothing is computed, so nothing is waited for."""

    def wait_event(self, event: Any) -> None:
        """Nothing is computed, so nothing is waited for."""

    def synchronize(self) -> None:
        """Nothing is computed, so nothing is waited for."""

    def record_event(self, event: Any = None) -> Any:
        """An event that has happened."""
        return torch.cpu.Event() if event is None else event


class Streams:
    """The streams of one traced rank; 0 is the default stream."""

    def __init__(self) -> None:
        self._all = [Stream(0)]
        self._current = [self._all[0]]

    def current(self) -> int:
        """The number of the stream that allocates now."""
        return self._current[-1].stream_id

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Let ``torch.cpu`` hand out these streams."""
        names = ("Stream", "stream", "current_stream")
        before = {name: getattr(torch.cpu, name) for name in names}
        for name, ours in zip(names, (self._made, self._entered, self._now), strict=True):
            setattr(torch.cpu, name, ours)
        try:
            yield
        finally:
            for name, theirs in before.items():
                setattr(torch.cpu, name, theirs)

    def _made(self, *_: object, **__: object) -> Stream:
        self._all.append(Stream(len(self._all)))
        return self._all[-1]

    def _now(self, *_: object) -> Stream:
        return self._current[-1]

    @contextlib.contextmanager
    def _entered(self, stream: Stream) -> Iterator[None]:
        self._current.append(stream)
        try:
            yield
        finally:
            self._current.pop()
