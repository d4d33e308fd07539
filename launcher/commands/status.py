"""The state of runs: those named, or the newest below runs/; in a folder without runs/, of all recorded anywhere.

Runs that wait or run are shown however old they are, and how many others there are is said: `--all` shows them.
Of a run that trains its step, loss, speed and the time that is left; of one that waits, what it waits for; of a sweep
its points, with what was predicted, what came, and the best one with the line that repeats it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from launcher.actions.find_runs import find, sweep_of
from launcher.actions.requests import folder
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.terminal import say, width
from launcher.commands._options import add_shared, print_json, settle
from launcher.commands._sorting import add_sort, in_order
from launcher.rundir import live, status
from launcher.views.runs import by_place, table

_NEWEST = 20  # Runs that are shown where none are named: with the heading and the lines behind them they fit 24 lines.


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_shared(parser, "runs")
    add_sort(parser)
    words = f"the N newest, and those that wait or run (default {_NEWEST}; all with --json, --sort)"
    parser.add_argument("--newest", type=int, metavar="N", help=words)
    parser.add_argument("--all", action="store_true", help="all runs, however many")
    add_shared(parser, "--json")


def run(options: argparse.Namespace) -> int:
    """Print one row a run, or a sweep's table."""
    _require_a_number(options)
    settle(options)
    if len(options.runs) == 1 and (directory := sweep_of(options.runs[0])) is not None:
        _sweep(directory, options)
        return 0
    everywhere = not options.runs and not (folder() / "runs").is_dir()
    runs = find(options.runs)
    count = _count(options)
    rows = status.read_all(runs) if count is None else status.read_newest(runs, count)
    more = len(runs) - len(rows)
    if options.json:
        rows = in_order(by_place(rows) if everywhere else rows, options.sort)
        facts = zip(rows, live.read(rows), strict=True)
        print_json({"schema": 1, "runs": [{**row.as_dict(), **now.as_dict()} for row, now in facts], "more": more})
        return 0
    if not runs:
        print("no runs below runs/")
        return 0
    if everywhere:
        say("launch: no runs below runs/; these were recorded in other folders")
    if not options.runs:
        rows = (by_place(rows) if everywhere else rows)[::-1]
    print("\n".join(table(in_order(rows, options.sort), placed=everywhere, folder=folder())))
    if more:
        print(f"{more:,} more that neither wait nor run: launch status --all")
    return 0


def _require_a_number(options: argparse.Namespace) -> None:
    """Refuse a number of runs that is none, or that is given beside what says which runs.

    Raises:
        ConfigErrors: It is.
    """
    count, ways = options.newest, ["--newest 20", "--all"]
    if count is not None and count < 0:
        raise ConfigErrors([ConfigError("--newest", count, "a number of runs, 0 or more", ways)])
    if count is not None and (options.all or options.runs):
        other = "--all" if options.all else "RUN"
        raise ConfigErrors([ConfigError("--newest", count, f"{other} says which runs are shown: one of the two", ways)])


def _count(options: argparse.Namespace) -> int | None:
    """The number of newest runs to show; None for all, for a program and where a column is compared."""
    if options.newest is not None:
        return int(options.newest)
    return None if options.runs or options.all or options.json or options.sort else _NEWEST


def _sweep(directory: Path, options: argparse.Namespace) -> None:
    from launcher.sweeping import outcomes
    from launcher.views import sweep_table

    points = in_order(outcomes.rows(directory), options.sort)
    best = outcomes.best(points)
    if options.json:
        found = None
        if best is not None:
            loss = outcomes.basis(points).loss(best.trained)
            found = {"point": best.point.id, "loss": loss, "overrides": outcomes.words(directory, best)}
        print_json({"schema": 1, "runs": [row.as_dict() for row in points], "best": found})
        return
    print(sweep_table.text(points, width()))
    if said := sweep_table.best_line(directory, best, points):
        print(said)
