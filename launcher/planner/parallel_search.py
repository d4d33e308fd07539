"""The search, run in two processes if there are two processors.

Every other set of degrees goes to the second process. Each process finds the best layouts of its own degrees, and the
best of both are the answer. The split is the same on every machine, and so are the counts.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from launcher.planner.candidates import Found
from launcher.planner.judge import Preflight
from launcher.planner.search import OpenedDegrees, Search
from launcher.planner.space import Space

_FEW = 400  # Sets of degrees that one processor searches in about the time that a second process takes to start.

type Progress = Callable[[Found], None]
"""Called often with the results so far."""


def searched(spaces: Sequence[Space], judge: Preflight, progress: Progress | None = None) -> Found:
    """The results of searching all degrees of some spaces."""
    opened = degrees_of(spaces, judge)
    if len(opened) < _FEW:
        return _part(spaces, judge, opened, progress)
    second = _started(spaces, judge, opened[1::2])
    found = _part(spaces, judge, opened[0::2], progress)
    found.merge(second())
    return found


def degrees_of(spaces: Sequence[Space], judge: Preflight) -> list[OpenedDegrees]:
    """The degrees of some spaces, each with the number of its opening, in a fixed order."""
    return [(number, degrees) for number, space in enumerate(spaces) for degrees in space.degrees(judge.errors)]


def _part(
    spaces: Sequence[Space], judge: Preflight, opened: Sequence[OpenedDegrees], progress: Progress | None = None
) -> Found:
    search = Search(spaces, judge)
    for found in search.run(opened):
        if progress is not None:
            progress(found)
    return search.found


def _started(spaces: Sequence[Space], judge: Preflight, opened: Sequence[OpenedDegrees]) -> Callable[[], Found]:
    """Start the second part in a child process, and return a function that waits for its result.

    With threads, where forking is unsafe, or with a single processor, that function does the search itself.
    """
    if threading.active_count() > 1 or (os.cpu_count() or 1) < 2 or not hasattr(os, "fork"):
        return lambda: _part(spaces, judge, opened)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, spaces, judge, opened), daemon=True)
    process.start()
    theirs.close()

    def received() -> Found:
        try:
            found: Found = ours.recv()
        except EOFError:  # The child was killed, for example by a memory limit: search its part here.
            found = _part(spaces, judge, opened)
        process.join()
        return found

    return received


def _send(pipe: Connection, spaces: Sequence[Space], judge: Preflight, opened: Sequence[OpenedDegrees]) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent gets the same interrupt and ends this process.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # How the parent ends it; the command's handler would print more.
    pipe.send(_part(spaces, judge, opened))
