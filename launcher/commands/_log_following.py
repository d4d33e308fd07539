"""``launch logs --follow``: steps and printed lines as they come, over new attempts and requeues, until the run ends.

The run's own files tell its state at every look, Slurm only now and then, since a controller should not be asked three
times a second. Files are found anew at every look, because an attempt has new ones. A resumed worker puts other metrics
in place of the old, without the steps that it will do again; what has been shown is known by its time.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from launcher.base.files import Tail
from launcher.base.terminal import say
from launcher.rundir import contents, output, progress, state, status
from launcher.rundir.state import RunState

_POLL_S = 0.3
_ASK_S = {"local": 2, "slurm": 15}


class Watched:
    """A run, and how much of it has been shown; made before what there is of it is printed, so that no line is lost."""

    def __init__(self, row: RunState, rank: int | None, *, everything: bool) -> None:
        """Note the ends of its files.

        Args:
            row: The run.
            rank: Show only what this rank prints.
            everything: Show also what torchrun and submitit print.
        """
        self._name, self._directory = row.id, Path(row.directory)
        self._rank, self._everything = rank, everything
        self._metrics = Tail(self._directory / progress.METRICS, from_start=False)
        self._last: dict[str, Any] = next(iter(progress.newest(self._directory, 1)), {})
        self._tails = {path: Tail(path, from_start=False) for path in self._paths()}
        self._heading: Path | None = None
        self._asked, self._told = 0.0, (row.state, row.reason)

    def follow(self) -> RunState:
        """Print what is added until the run has ended; how it did."""
        try:
            while not self._has_ended():
                self._print_news()
                time.sleep(_POLL_S)
            self._print_news(ended=True)
        except KeyboardInterrupt:
            say(f"launch: {self._name} goes on; launch cancel {self._name} stops it")
            raise
        return status.read(self._directory)

    def _has_ended(self) -> bool:
        """True once files or Slurm say so; says what else has changed."""
        content = contents.known(self._directory, contents.STATE)
        if content.get("state") in state.ENDED:
            return True
        now = time.monotonic()
        if now - self._asked < _ASK_S[status.kind(self._directory) or "local"]:
            return False
        row, self._asked = status.read(self._directory), now
        told = (row.state, row.reason)
        if told != self._told and row.state not in state.ENDED:
            say(f"launch: {row.id} is {row.state}" + (f": {row.reason}" if row.reason else ""))
        self._told = told
        return row.state in state.ENDED

    def _print_news(self, *, ended: bool = False) -> None:
        """Print the steps that were done since the last call, and then what was printed."""
        if self._rank is None:
            self._print_steps()
        for path in self._paths():
            lines = self._tails.setdefault(path, Tail(path, from_start=True)).lines(ended=ended)
            if lines and path != self._heading:
                print(f"==> {path} <==")
                self._heading = path
            for line in lines:
                print(line, flush=True)

    def _print_steps(self) -> None:
        rows = progress.rows_of(self._metrics.lines())
        if self._metrics.restarted:
            rows = [row for row in rows if self._is_new(row)]
        steps = progress.last_step_of(self._directory) if rows else None
        for row in rows:
            if row["step"] <= self._last.get("step", 0):
                print(f"goes on from step {row['step'] - 1}")
            print(progress.line(row, steps), flush=True)
            self._last, self._heading = row, None

    def _is_new(self, row: dict[str, Any]) -> bool:
        """True for a line that came after the last one shown, of the time where lines have one, else of the steps."""
        key = "time" if "time" in row and "time" in self._last else "step"
        return bool(row[key] > self._last.get(key, 0))

    def _paths(self) -> tuple[Path, ...]:
        found = output.outputs(self._directory) if self._rank is None else output.of_rank(self._directory, self._rank)
        if found is None:
            return ()
        return found.every if self._everything else found.ranks
