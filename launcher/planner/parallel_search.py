"""A search in two halves, on two cores where there are two.

Of the frames every other one belongs to the second half. Each half finds the best ideas of its own frames, and the best
of both is the answer. The halves are the same on every machine, so that the counts are, too.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from launcher.planner.judge import Judge
from launcher.planner.search import Found, OpenedFrame, Search
from launcher.planner.space import Space

_FEW = 400
"""Frames that one core is done with in about the time in which a second process has started."""

type Progress = Callable[[Found], None]
"""Told what has been found so far, often."""


def searched(spaces: Sequence[Space], judge: Judge, progress: Progress | None = None) -> Found:
    """Search all frames of some spaces.

    Args:
        spaces: The layouts of each opening.
        judge: Rules and estimates.
        progress: Told on the way.
    """
    frames = frames_of(spaces, judge)
    if len(frames) < _FEW:
        return _half(spaces, judge, frames, progress)
    second = _begun(spaces, judge, frames[1::2])
    found = _half(spaces, judge, frames[0::2], progress)
    found.merge(second())
    return found


def frames_of(spaces: Sequence[Space], judge: Judge) -> list[OpenedFrame]:
    """The frames of some spaces, each with the number of its opening, in an order that is always the same."""
    return [(number, frame) for number, space in enumerate(spaces) for frame in space.frames(judge.errors)]


def _half(
    spaces: Sequence[Space], judge: Judge, frames: Sequence[OpenedFrame], progress: Progress | None = None
) -> Found:
    search = Search(spaces, judge)
    for found in search.run(frames):
        if progress is not None:
            progress(found)
    return search.found


def _begun(spaces: Sequence[Space], judge: Judge, frames: Sequence[OpenedFrame]) -> Callable[[], Found]:
    """Begin with the second half in a process of its own; the result is a function that waits for its answer.

    A process with threads must not be forked, and one core gains nothing: there it is done in turn.
    """
    if threading.active_count() > 1 or (os.cpu_count() or 1) < 2 or not hasattr(os, "fork"):
        return lambda: _half(spaces, judge, frames)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, spaces, judge, frames), daemon=True)
    process.start()
    theirs.close()

    def received() -> Found:
        try:
            found: Found = ours.recv()
        except EOFError:  # It was killed, as by a limit on memory: its half is done here.
            found = _half(spaces, judge, frames)
        process.join()
        return found

    return received


def _send(pipe: Connection, spaces: Sequence[Space], judge: Judge, frames: Sequence[OpenedFrame]) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent is interrupted, too, and ends this process.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # As which it does so: the command's own handler would say more.
    pipe.send(_half(spaces, judge, frames))
