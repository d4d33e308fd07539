"""A search on two processors where there are two.

Of the degrees every other one belongs to the second process. Each finds the best layouts of its own degrees, and the
best of both are the answer. The parts are the same on every machine, so that the counts are, too.
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

_FEW = 400  # Degrees that one processor is done with in about the time in which a second process has started.

type Progress = Callable[[Found], None]
"""Told what has been found so far, often."""


def searched(spaces: Sequence[Space], judge: Preflight, progress: Progress | None = None) -> Found:
    """Search all degrees of some spaces."""
    opened = degrees_of(spaces, judge)
    if len(opened) < _FEW:
        return _part(spaces, judge, opened, progress)
    second = _begun(spaces, judge, opened[1::2])
    found = _part(spaces, judge, opened[0::2], progress)
    found.merge(second())
    return found


def degrees_of(spaces: Sequence[Space], judge: Preflight) -> list[OpenedDegrees]:
    """The degrees of some spaces, each with the number of their opening, in an order that is always the same."""
    return [(number, degrees) for number, space in enumerate(spaces) for degrees in space.degrees(judge.errors)]


def _part(
    spaces: Sequence[Space], judge: Preflight, opened: Sequence[OpenedDegrees], progress: Progress | None = None
) -> Found:
    search = Search(spaces, judge)
    for found in search.run(opened):
        if progress is not None:
            progress(found)
    return search.found


def _begun(spaces: Sequence[Space], judge: Preflight, opened: Sequence[OpenedDegrees]) -> Callable[[], Found]:
    """Begin with the second part in a process of its own; the result is a function that waits for its answer.

    A process with threads must not be forked, and one processor gains nothing: there it is done in turn.
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
        except EOFError:  # It was killed, as by a limit on memory: its part is done here.
            found = _part(spaces, judge, opened)
        process.join()
        return found

    return received


def _send(pipe: Connection, spaces: Sequence[Space], judge: Preflight, opened: Sequence[OpenedDegrees]) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent is interrupted, too, and ends this process.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # As which it does so: the command's own handler would say more.
    pipe.send(_part(spaces, judge, opened))
