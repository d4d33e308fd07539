"""What may lie in place of a file: pipes, devices, sockets, folders and links that lead nowhere or everywhere."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):  # A path of a socket has 108 bytes.
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
"""Each by what it is, made at a path where nothing is yet; to open or to read some of them never ends."""


@contextlib.contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    """Fail what waits for ever; the limit is far from what the slowest machine takes."""

    def late(*_: object) -> None:
        raise AssertionError(f"it has not ended after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
