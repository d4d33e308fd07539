"""Things that may be in place of a file: pipes, devices, sockets, folders, broken and circular links."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):  # A socket path has at most 108 bytes.
        made.bind(path.name)


def _link_to_a_pipe(path: Path) -> None:
    os.mkfifo(f"{path}.pipe")
    path.symlink_to(f"{path}.pipe")


ODD: Mapping[str, Callable[[Path], object]] = {
    "a named pipe": os.mkfifo,
    "a socket": _socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": lambda path: path.mkdir(),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a pipe": _link_to_a_pipe,
}
"""A function per kind that creates it at a free path; opening or reading some of them never returns."""


@contextlib.contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    """Fail code that blocks forever; the limit is far above the time that the slowest machine needs."""

    def late(*_: object) -> None:
        raise AssertionError(f"it has not ended after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
