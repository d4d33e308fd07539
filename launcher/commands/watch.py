"""A run or sweep live on the terminal, until it has ended; q or Ctrl-C leaves it, and the run goes on.

A frame is drawn in place and fits 80 columns. The run's own files are read every second, Slurm is asked every fifteen.
Where stdout is no terminal, and with --once, one frame is printed. `launch status --json` has the same facts.
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

from launcher.actions.find_runs import find, sweep_of
from launcher.actions.requests import folder
from launcher.base import terminal
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.terminal import say, width
from launcher.commands._options import settle
from launcher.rundir import contents, live, results, run_names, state, status
from launcher.rundir.live import Live
from launcher.rundir.status import RunState
from launcher.views import runs as view

_ASK_S = {"local": 1.0, "slurm": 15.0}  # Seconds between questions for a run's state.
_LEAVE = "q leaves; the run goes on"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("runs", nargs="?", metavar="RUN", help="a run or sweep, as of status; if none the newest")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between frames (default 1)")
    parser.add_argument("--once", action="store_true", help="print one frame and end")


def run(options: argparse.Namespace) -> int:
    """Draw frames until the run has ended or the user leaves."""
    if not options.interval > 0:
        rule = "seconds between two frames, more than none"
        raise ConfigErrors([ConfigError("--interval", options.interval, rule, ["--interval 1"])])
    options.runs, options.json = [] if options.runs is None else [options.runs], False
    settle(options)
    watched = _chosen(options.runs)
    if watched is None:
        say("launch: no runs below runs/")
        return 0
    if options.once or not sys.stdout.isatty():
        print("\n".join(watched.lines(width())))
        return 0
    if not _drawn(watched, options.interval):
        say(f"launch: {watched.name} goes on; launch watch {shlex.quote(watched.name)} shows it again")
    return 0


def _chosen(words: list[str]) -> "_Watched | _WatchedSweep | None":
    if words and (swept := sweep_of(words[0])) is not None:
        return _WatchedSweep(swept)
    runs = find(words)
    if not runs:
        return None
    if len(runs) == 1:
        return _Watched(runs[0])
    if words:  # Tasks of an array.
        names = [run_names.name_of(path, folder()) for path in runs]
        raise ConfigErrors([ConfigError("RUN", words[0], "it is several runs: one of them is watched", names)])
    rows = status.read_newest(runs, 1)
    alive = [row for row in rows if row.state in ("running", "requeued", "queued")]
    return _Watched(Path((alive or rows)[-1].directory))


class _Watched:
    """A run; its state is asked for now and then, its files are read at every look."""

    def __init__(self, run: Path) -> None:
        self._run, self.name = run, run_names.name_of(run, folder())
        self._row, self._now = self._asked()

    @property
    def ended(self) -> bool:
        return self._row.state in state.ENDED

    def lines(self, columns: int) -> list[str]:
        """One frame."""
        interval = _ASK_S[status.kind(self._run) or "local"]
        on_disk = contents.known(self._run, contents.STATE).get("state", self._on_disk)
        if on_disk != self._on_disk or time.monotonic() - self._at >= interval:
            self._row, self._now = self._asked()
        else:
            self._row = replace(self._row, progress=results.read_progress(self._run))
            self._now = live.of_files(self._row, self._now.queue)
        frame = view.frame(self._row, self._now, columns)
        if self.ended and self._row.state != "finished":
            frame.append(f"launch why {shlex.quote(self.name)} says why it ended")
        return view.folded(frame, columns)

    def _asked(self) -> tuple[RunState, Live]:
        self._at = time.monotonic()
        self._on_disk = contents.known(self._run, contents.STATE).get("state")
        row = status.read(self._run)
        return row, live.read([row])[0]


class _WatchedSweep:
    def __init__(self, directory: Path) -> None:
        self._directory, self.name = directory, run_names.name_of(directory, folder())
        self._at, self._frame, self.ended = 0.0, [""], False

    def lines(self, columns: int) -> list[str]:
        """One frame, made anew as often as Slurm may be asked."""
        from launcher.sweeping import sweep

        if not self._at or time.monotonic() - self._at >= _ASK_S["slurm" if self._is_on_slurm else "local"]:
            points = sweep.rows(self._directory)
            self.ended = all(point.run is None or point.run.state in state.ENDED for point in points)
            self._frame, self._at = view.sweep_text(points, columns).splitlines(), time.monotonic()
        return view.folded(self._frame, columns)

    @property
    def _is_on_slurm(self) -> bool:
        runs = run_names.find([str(self._directory)], folder())
        return bool(runs) and status.kind(runs[0]) == "slurm"


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
    """A function that waits so many seconds, and returns True at once if the key q comes; without a keyboard never."""
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
        tty.setcbreak(number)  # Ctrl-C stays a signal.
        yield wait
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
