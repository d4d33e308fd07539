"""Show the logs of a run: its newest steps, then its ranks' output; after a failure first the worker's traceback.

The output of torchrun and submitit, and of earlier attempts, is folded into one line with its size; --all shows it.
"""

import argparse
import shlex
import time
from pathlib import Path

from launcher.actions.diagnosis import BAD, document, errors_of, outputs_of
from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject, Tail
from launcher.base.terminal import say
from launcher.base.units import counted
from launcher.commands._options import add_shared, named_runs, print_json
from launcher.rundir import health, output, results, state, status
from launcher.rundir.output import Outputs
from launcher.rundir.status import RunState

_POLL_S = 0.3  # Seconds between two reads of the files of a followed run.


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("runs", nargs="*", metavar="RUN", help="as in status; default: the newest run")
    parser.add_argument("--lines", type=int, default=20, metavar="N", help="last steps and lines of files (default 20)")
    parser.add_argument("--rank", type=int, metavar="R", help="only what this rank printed")
    parser.add_argument("--all", action="store_true", help="also torchrun, submitit and earlier attempts")
    parser.add_argument("--follow", action="store_true", help="print new output until the run ends")
    add_shared(parser, "--json")


def run(options: argparse.Namespace) -> int:
    """Print the steps and files of each run; with --follow continue until it ends."""
    if options.json and options.follow:
        rule = "it prints new output as it comes, but --json is a single document"
        raise ConfigErrors([ConfigError("--follow", None, rule, ["launch logs --json"])])
    if options.lines < 1:
        raise ConfigErrors([ConfigError("--lines", options.lines, "must be at least 1", ["--lines 1"])])
    directories = named_runs(options).runs
    rows = status.read_all(directories if options.runs else directories[-1:])
    if options.json:
        print_json({"schema": 1, "logs": [document(row, lines=options.lines, rank=options.rank) for row in rows]})
        return 0
    if not rows:
        say("launch: no runs below runs/")
    for row in rows:
        if options.follow and row.state not in state.ENDED:
            _follow(row, options)
        else:
            _print(row, options)
    return 0


def _follow(row: RunState, options: argparse.Namespace) -> None:
    watched = _Followed(row, options.rank, everything=options.all)
    _print(row, options)
    ended = watched.follow()
    _print_head(ended, options)
    _print_folded(ended, outputs_of(Path(row.directory), options.rank), options)


def _print(row: RunState, options: argparse.Namespace) -> None:
    directory, found = Path(row.directory), outputs_of(Path(row.directory), options.rank)
    steps = [] if options.rank is not None else results.newest(directory, options.lines)
    if not (steps or found.every or row.reason or options.follow):
        who = "" if options.rank is None else f" by rank {options.rank}"
        say(f"launch: {row.id} is {row.state}, and nothing was printed{who}")
        return
    _print_head(row, options)
    _print_hang(row)
    for step in steps:
        print(results.metrics_line(step, row.progress.steps))
    for path in _shown(row, found, options):
        _print_file(path, output.tail(path, options.lines))
    _print_folded(row, found, options)


def _print_head(row: RunState, options: argparse.Namespace) -> None:
    print(f"{row.id} is {row.state}" + (f": {row.reason}" if row.reason else ""), flush=True)
    errors = errors_of(row, options.rank)
    for error in errors if options.all else errors[:1]:
        path = Path(row.directory) / "logs" / f"error.rank{error['rank']}.json"
        if options.all or not output.is_of_another(error):
            _print_file(path, error["traceback"].splitlines())


def _print_hang(row: RunState) -> None:
    path = health.stacks(Path(row.directory)) if row.state in ("running", *BAD) else None
    if path is not None:
        _print_file(path, files.last_lines(path))


def _shown(row: RunState, found: Outputs, options: argparse.Namespace) -> tuple[Path, ...]:
    """The files to show: all of them with --all, or if nothing else explains a failure; else the ranks' own."""
    silent = not found.ranks and row.state in BAD and not errors_of(row, None)
    return found.every if options.all or silent else found.ranks


def _print_folded(row: RunState, found: Outputs, options: argparse.Namespace) -> None:
    hidden = set(found.every).difference(_shown(row, found, options))
    parts = [
        f"{counted(output.count(paths), 'line')} of {who}"
        for who, paths in (("torchrun and submitit", found.around), ("earlier attempts", found.earlier))
        if hidden.intersection(paths)
    ]
    errors = errors_of(row, options.rank)  # The first is shown, unless it only reports another rank's failure.
    kept = 0 if options.all else len(errors) - (errors != [] and not output.is_of_another(errors[0]))
    parts += [f"{counted(kept, 'traceback')} of other ranks"] if kept else []
    if parts:
        print(f"folded: {' and '.join(parts)} (launch logs {shlex.quote(row.id)} --all)")


def _print_file(path: Path, lines: list[str]) -> None:
    print(f"==> {path} <==", *lines, sep="\n", flush=True)


class _Followed:
    """Prints a run's new steps and lines, over new attempts and requeues, until it ends."""

    def __init__(self, row: RunState, rank: int | None, *, everything: bool) -> None:
        self._name, self._directory = row.id, Path(row.directory)
        self._rank, self._everything = rank, everything  # Everything: also the output of torchrun and submitit.
        self._metrics = Tail(self._directory / results.METRICS, from_start=False)
        self._last: JsonObject = next(iter(results.newest(self._directory, 1)), {})
        self._tails = {path: Tail(path, from_start=False) for path in self._paths()}
        self._heading: Path | None = None
        self._asked = status.PolledState(self._directory)

    def follow(self) -> RunState:
        """Print new steps and lines until the run has ended, and return its state then."""
        try:
            while not self._has_ended():
                self._print_news()
                time.sleep(_POLL_S)
            self._print_news(ended=True)
        except KeyboardInterrupt:
            say(f"launch: {self._name} keeps running; launch cancel {self._name} stops it")
            raise
        return status.read(self._directory)

    def _has_ended(self) -> bool:
        before = self._asked.row
        row = self._asked.row if self._asked.look() else before
        if (row.state, row.reason) != (before.state, before.reason) and row.state not in state.ENDED:
            say(f"launch: {row.id} is {row.state}" + (f": {row.reason}" if row.reason else ""))
        return row.state in state.ENDED

    def _print_news(self, *, ended: bool = False) -> None:
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
        rows = list(results.rows_of(self._metrics.lines()))
        if self._metrics.restarted:
            rows = [row for row in rows if self._is_new(row)]
        steps = results.last_step_of(self._directory) if rows else None
        for row in rows:
            if row["step"] <= self._last.get("step", 0):
                print(f"continues from step {row['step'] - 1}")
            print(results.metrics_line(row, steps), flush=True)
            self._last, self._heading = row, None

    def _is_new(self, row: JsonObject) -> bool:
        key = "time" if "time" in row and "time" in self._last else "step"
        return bool(row[key] > self._last.get(key, 0))

    def _paths(self) -> tuple[Path, ...]:
        found = output.outputs(self._directory) if self._rank is None else output.of_rank(self._directory, self._rank)
        if found is None:
            return ()
        return found.every if self._everything else found.ranks
