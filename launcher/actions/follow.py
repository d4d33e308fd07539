"""Follow a run on this machine: a progress bar while it trains, one table when it ends.

The run is a separate process, observed through ``metrics.jsonl`` and ``state.json``. Ctrl-C and SIGTERM ask it to save
and end, a second one kills it; a closed terminal (SIGHUP) leaves the run alone.
"""

import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from launcher.actions.stop import stop
from launcher.base import files, terminal
from launcher.base.errors import INTERRUPTED, JobFailed
from launcher.base.files import JsonObject
from launcher.base.terminal import say
from launcher.base.units import duration
from launcher.job import events
from launcher.rundir import provenance, results, run_names, state, status
from launcher.spec import RunSpec
from launcher.submission import interrupts
from launcher.views.pairs import summary_table

_RANK_0 = "logs/ranks/*/attempt_*/0"  # torchrun's folder of rank 0's output, in each attempt.
_POLL_S = 0.2  # Seconds between polls of a run, too short for a person to notice.

type Show = Callable[[list[JsonObject] | None], None]
"""Receives new lines of metrics, and None at the end."""


def follow(directory: Path, spec: RunSpec, *, show: Callable[[str], None] | None, summary: bool = True) -> int:
    """Follow a run to its end and return the exit status: 0, 5 if the job failed, 130 if interrupted."""
    interrupted = watch_run(directory, spec, quiet=show is None)
    ending = status.read(directory)
    if ending.state == "finished":
        if summary and show is not None:
            show(summary_table(directory))
        return 0
    if ending.state == "cancelled" or interrupted:
        _say(ending.reason or "stopped")
        return INTERRUPTED
    _say(f"the job failed: {ending.reason}")
    name = shlex.quote(ending.id)
    _say(f"why: launch why {name}; its logs: launch logs {name}; continue: launch resume {name}")
    if spec.script is not None:
        copy = provenance.script_copy(directory, spec.script)
        _say(f"a resumed run uses its copy of the script: fix {copy}, or start a new run")
    return JobFailed.exit_status


def watch_run(directory: Path, spec: RunSpec, *, quiet: bool) -> bool:
    """Wait for a run's end and show its progress; True if Ctrl-C requested the end."""
    interruptions = 0
    show = _show(spec, quiet) if spec.script is None or quiet else OutputFollower(directory).show
    seen = len(events.news(directory))
    with interrupts.held():
        while True:
            try:
                for lines in _news(directory):
                    show(lines)
                    news = events.news(directory)[seen:]
                    seen += len(news)
                    for event in news:
                        _say(event["text"])
                    interrupts.look()
                break
            except KeyboardInterrupt as interruption:
                if getattr(interruption, "number", None) == signal.SIGHUP:
                    raise  # Nobody is watching any more; the run continues.
                interruptions += 1
                _say("stopping after this step; Ctrl-C again kills it at once" if interruptions == 1 else "killed")
                stop(directory, signal.SIGTERM if interruptions == 1 else signal.SIGKILL)
        show(None)
        interrupts.note_ended(run_names.name_of(directory, Path.cwd()))
    return interruptions > 0


def _say(text: str) -> None:
    say(f"launch: {text}")


def _news(directory: Path) -> Iterator[list[JsonObject]]:
    metrics = files.Tail(directory / "metrics.jsonl", from_start=not (directory / "checkpoints").exists())
    while True:
        ended = status.read(directory).state in state.ENDED
        yield list(results.training(metrics.lines()))
        if ended:
            return
        time.sleep(_POLL_S)


def _show(spec: RunSpec, quiet: bool) -> Show:
    if quiet:
        return lambda lines: None
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(file=terminal.raw(sys.stderr))
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    progress = Progress(*columns, TextColumn("{task.fields[now]}"), TimeElapsedColumn(), console=console)
    task = progress.add_task("starting", total=spec.steps, now="")
    progress.start()

    def show(lines: list[JsonObject] | None) -> None:
        if lines is None:
            progress.stop()
        steps = [line for line in lines or () if "loss" in line]
        if steps:
            last = steps[-1]
            speed = f"{last.get('tokens_per_second', 0):,.0f} tokens/s{_left(steps, spec)}"
            now = f"last loss {last['loss']:.4f}  {speed}"
            progress.update(task, completed=last["step"], description="training", now=now)

    return show


def _left(rows: list[JsonObject], spec: RunSpec) -> str:
    seconds = results.seconds_left(rows, None if spec.script is not None else spec.steps)
    return f"  {duration(seconds)} left" if seconds else ""


class OutputFollower:
    """Passes on what rank 0 prints from now on; attempts that already exist, in a resumed run, are skipped."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._old = set(directory.glob(_RANK_0))
        self._tails: dict[Path, files.Tail] = {}

    def show(self, _: list[JsonObject] | None) -> None:
        """Pass on new output; the script prints its own metrics."""
        for folder in sorted(set(self._directory.glob(_RANK_0)) - self._old):
            self._pass_on(folder / "stdout.log", terminal.raw(sys.stdout))
            self._pass_on(folder / "stderr.log", terminal.raw(sys.stderr))

    def _pass_on(self, path: Path, to: TextIO) -> None:
        to.write(terminal.coloured(self._tails.setdefault(path, files.Tail(path, from_start=True)).text()))
        to.flush()
