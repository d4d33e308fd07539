"""The logs of a run: its newest steps, then the output of its ranks; of a failure first the worker's own traceback.

What torchrun and submitit print around it, and earlier attempts, is one line that counts it; --all shows it.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from launcher.actions.diagnosis import BAD, document, errors_of, outputs_of
from launcher.actions.find_runs import find
from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.terminal import say
from launcher.commands._options import add_json, print_json, settle
from launcher.rundir import failure, health, output, progress, state, status
from launcher.rundir.output import Outputs
from launcher.rundir.state import RunState


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("runs", nargs="*", metavar="RUN", help="as of status; the newest run if none")
    parser.add_argument("--lines", type=int, default=20, metavar="N", help="last steps and lines of files (default 20)")
    parser.add_argument("--rank", type=int, metavar="R", help="only what this rank printed")
    parser.add_argument("--all", action="store_true", help="also torchrun, submitit and earlier attempts")
    parser.add_argument("--follow", action="store_true", help="go on until the run has ended")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the steps and files of each run; with --follow also what is added to them."""
    if options.json and options.follow:
        rule = "it prints what is added as it comes, and --json is one document"
        raise ConfigErrors([ConfigError("--follow", None, rule, ["launch logs --json"])])
    if options.lines < 1:
        raise ConfigErrors([ConfigError("--lines", options.lines, "at least one line is shown", ["--lines 1"])])
    settle(options)
    directories = find(options.runs)
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
    from launcher.commands._log_following import Watched

    watched = Watched(row, options.rank, everything=options.all)
    _print(row, options)
    ended = watched.follow()
    _print_head(ended, options)
    _print_folded(ended, outputs_of(Path(row.directory), options.rank), options)


def _print(row: RunState, options: argparse.Namespace) -> None:
    directory, found = Path(row.directory), outputs_of(Path(row.directory), options.rank)
    steps = [] if options.rank is not None else progress.newest(directory, options.lines)
    if not (steps or found.every or row.reason or options.follow):
        who = "" if options.rank is None else f" by rank {options.rank}"
        say(f"launch: {row.id} is {row.state}, and nothing was printed{who}")
        return
    _print_head(row, options)
    _print_hang(row)
    for step in steps:
        print(progress.line(step, row.progress.steps))
    for path in _shown(row, found, options):
        print_file(path, output.tail(path, options.lines))
    _print_folded(row, found, options)


def _print_head(row: RunState, options: argparse.Namespace) -> None:
    """The run's state, and why it failed as the worker itself says it."""
    print(f"{row.id} is {row.state}" + (f": {row.reason}" if row.reason else ""), flush=True)
    errors = errors_of(row, options.rank)
    for error in errors if options.all else errors[:1]:
        path = Path(row.directory) / "logs" / f"error.rank{error['rank']}.json"
        if options.all or not failure.is_of_another(error):
            print_file(path, error["traceback"].splitlines())


def _print_hang(row: RunState) -> None:
    """The stacks of all ranks of a hang that is not over, or by which the run has ended."""
    path = health.stacks(Path(row.directory)) if row.state in ("running", *BAD) else None
    if path is not None:
        print_file(path, files.last_lines(path))


def _shown(row: RunState, found: Outputs, options: argparse.Namespace) -> tuple[Path, ...]:
    """All files where that was asked for, or where an end has no other witness; else those of the ranks."""
    silent = not found.ranks and row.state in BAD and not errors_of(row, None)
    return found.every if options.all or silent else found.ranks


def _print_folded(row: RunState, found: Outputs, options: argparse.Namespace) -> None:
    """Count what is not shown, and name the option that shows it."""
    hidden = set(found.every).difference(_shown(row, found, options))
    parts = [
        f"{_many(output.count(paths), 'line')} of {who}"
        for who, paths in (("torchrun and submitit", found.around), ("earlier attempts", found.earlier))
        if hidden.intersection(paths)
    ]
    errors = errors_of(row, options.rank)  # The first is shown, unless it only tells of another rank.
    kept = 0 if options.all else len(errors) - (errors != [] and not failure.is_of_another(errors[0]))
    parts += [f"{_many(kept, 'traceback')} of other ranks"] if kept else []
    if parts:
        print(f"folded: {' and '.join(parts)} (launch logs {shlex.quote(row.id)} --all)")


def _many(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def print_file(path: Path, lines: list[str]) -> None:
    """Some lines of a file below its name."""
    print(f"==> {path} <==", *lines, sep="\n", flush=True)
