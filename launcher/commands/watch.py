"""Watch a run or sweep live on the terminal until it ends; q or Ctrl-C leaves, and the run keeps running.

Frames are drawn in place and fit 80 columns. The run's own files are read every second, Slurm is asked every fifteen.
If stdout is not a terminal, or with --once, one frame is printed. `launch status --json` has the same facts.
"""

import argparse
import contextlib
import os
import select
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from launcher.actions.find_runs import FoundRuns
from launcher.actions.requests import folder
from launcher.base import terminal
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.process import Timer
from launcher.base.terminal import say, width
from launcher.commands._options import named_runs
from launcher.rundir import live, results, run_names, state, status
from launcher.views import runs as view

_LEAVE = "q leaves; the run keeps running"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("runs", nargs="?", metavar="RUN", help="a run or sweep, as in status; default: the newest")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between frames (default 1)")
    parser.add_argument("--once", action="store_true", help="print one frame and exit")


def run(options: argparse.Namespace) -> int:
    """Draw frames until the run has ended or the user leaves."""
    if not options.interval > 0:
        rule = "must be more than 0 seconds between two frames"
        raise ConfigErrors([ConfigError("--interval", options.interval, rule, ["--interval 1"])])
    options.runs, options.json = [] if options.runs is None else [options.runs], False
    watched = _chosen(named_runs(options), options.runs)
    if watched is None:
        say("launch: no runs below runs/")
        return 0
    if options.once or not sys.stdout.isatty():
        print("\n".join(watched.lines(width())))
        return 0
    if not _drawn(watched, options.interval):
        say(f"launch: {watched.name} keeps running; launch watch {shlex.quote(watched.name)} shows it again")
    return 0


def _chosen(found: FoundRuns, words: list[str]) -> "_Watched | _WatchedSweep | None":
    if found.sweep is not None:
        return _WatchedSweep(found.sweep)
    if not (runs := found.runs):
        return None
    if len(runs) == 1:
        return _Watched(runs[0])
    if words:  # Tasks of an array.
        names = [run_names.name_of(path, folder()) for path in runs]
        raise ConfigErrors([ConfigError("RUN", words[0], "it names several runs, but only one can be watched", names)])
    rows = status.read_newest(runs, 1)
    alive = [row for row in rows if row.state in ("running", "requeued", "queued")]
    return _Watched(Path((alive or rows)[-1].directory))


class _Watched:
    """A watched run: its state is queried now and then, its files are read for every frame."""

    def __init__(self, run: Path) -> None:
        self._run, self.name, self._asked = run, run_names.name_of(run, folder()), status.PolledState(run)
        self._now = live.read([self._asked.row])[0]

    @property
    def ended(self) -> bool:
        return self._asked.row.state in state.ENDED

    def lines(self, columns: int) -> list[str]:
        """One frame."""
        if self._asked.look():
            row = self._asked.row
            self._now = live.read([row])[0]
        else:
            row = replace(self._asked.row, progress=results.read_progress(self._run))
            self._now = live.of_files(row, self._now.queue)
        frame = view.frame(row, self._now, columns)
        if self.ended and row.state != "finished":
            frame.append(f"launch why {shlex.quote(self.name)} explains why it ended")
        return view.folded(frame, columns)


class _WatchedSweep:
    def __init__(self, directory: Path) -> None:
        self._directory, self.name, self.ended = directory, run_names.name_of(directory, folder()), False
        runs = run_names.find([str(directory)], folder())
        self._due = Timer(status.ASK_S[(runs and status.kind(runs[0])) or "local"], at_once=True)

    def lines(self, columns: int) -> list[str]:
        """One frame, refreshed as often as Slurm may be asked."""
        from launcher.sweeping import sweep

        if self._due.is_due():
            points = sweep.rows(self._directory)
            self.ended = all(point.run is None or point.run.state in state.ENDED for point in points)
            self._frame = view.sweep_text(points, columns).splitlines()
        return view.folded(self._frame, columns)


def _drawn(watched: _Watched | _WatchedSweep, interval: float) -> bool:
    """Draw frames in place; True if the run has ended, False if the user has left."""
    from rich.console import Console
    from rich.live import Live as Screen
    from rich.text import Text

    console = Console(file=terminal.raw(sys.stdout))
    with (
        _keys() as left,
        Screen(console=console, auto_refresh=False, vertical_overflow="crop") as screen,
        contextlib.suppress(KeyboardInterrupt),
    ):
        while True:
            lines = watched.lines(console.width)
            shown = lines if watched.ended else [*lines, _LEAVE]
            screen.update(Text(terminal.visible("\n".join(shown)), no_wrap=True), refresh=True)
            if watched.ended or left(interval):
                break
    return watched.ended


def _slept(seconds: float) -> bool:
    time.sleep(seconds)
    return False


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits some seconds, and returns True at once if q is pressed; never without a keyboard."""
    if not sys.stdin.isatty():
        yield _slept
        return
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)

    def wait(seconds: float) -> bool:
        ready, _, _ = select.select([number], [], [], seconds)
        return bool(ready) and os.read(number, 1) in (b"q", b"Q", b"")

    try:
        tty.setcbreak(number)  # Ctrl-C remains a signal.
        yield wait
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
