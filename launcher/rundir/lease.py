"""The heartbeat of a run: a file in its folder that the first node renews, by which any host knows that it goes on.

It is the word about a run whose processes cannot be seen from here: on another host, in another container, or in a
Slurm that this host does not have. Its age is told by the clock of the file system alone, against a file that the
reader writes beside it, since the clocks of two hosts may differ.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from launcher.base import files
from launcher.base.process import Process

FILE = "heartbeat.json"
FRESH_S = 60.0
"""Age at which a heartbeat counts as stale: many beats, and the time for which NFS may keep what it has read."""

_BEAT_S = 5.0
_LOOK_S = 0.5


def begin(run: Path, keeper: Process) -> None:
    """Write the first heartbeat of a process that keeps the run, or is about to."""
    files.write_atomically(run / FILE, {"process": keeper.as_dict()})


@contextlib.contextmanager
def kept(run: Path) -> Iterator[None]:
    """Renew the run's heartbeat from another thread as long as this process keeps the run."""
    over = threading.Event()
    begin(run, Process.here())
    beating = threading.Thread(target=_beat, args=(run, over), daemon=True)
    beating.start()
    try:
        yield
    finally:
        over.set()
        beating.join()
        end(run)


def end(run: Path) -> None:
    """Take the heartbeat away: nobody keeps the run any more."""
    with contextlib.suppress(OSError):
        (run / FILE).unlink(missing_ok=True)


def _beat(run: Path, over: threading.Event) -> None:
    while not over.wait(_BEAT_S):
        with contextlib.suppress(OSError):  # A file system that is away, or full, comes back.
            os.utime(run / FILE)


def age(run: Path) -> float | None:
    """Seconds between the run's heartbeat and now, whichever is later by a clock that was set; None without one."""
    try:
        with files.opened(run / FILE) as file:  # To open it makes NFS ask its server, where a look alone may not.
            beat = os.fstat(file.fileno()).st_mtime
    except OSError:
        return None
    return abs(_now(run) - beat)


def fresh(run: Path) -> bool:
    """True if the run's heartbeat is renewed, so that somebody keeps it, wherever that is."""
    seconds = age(run)
    return seconds is not None and seconds < FRESH_S


def is_renewed(run: Path) -> bool:
    """True if the run's heartbeat is renewed while we look; one that was copied stays as it is."""
    first, until = _stamp(run), time.monotonic() + 2 * _BEAT_S
    if first is None or not fresh(run):
        return False
    while time.monotonic() < until:
        time.sleep(_LOOK_S)
        if _stamp(run) != first:
            return True
    return False


def _stamp(run: Path) -> int | None:
    try:
        with files.opened(run / FILE) as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None


def _now(run: Path) -> float:
    """The time by the clock that the folder's files are stamped with; this host's own where nothing can be written."""
    try:
        with tempfile.NamedTemporaryFile(dir=run, prefix=".clock.") as file:
            file.write(b"\n")
            file.flush()
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()
