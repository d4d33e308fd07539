"""The state of runs: those named, or the newest below runs/; in a folder without runs/, of all recorded anywhere.

Runs that wait or run are shown however old they are, and how many others there are is said: `--all` shows them.
Of a run that trains its step, loss, speed and the time that is left; of one that waits, what it waits for; of a sweep
its points, with what was predicted, what came, and the best one with the line that repeats it.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from launcher.actions.asking import folder
from launcher.actions.find_runs import find, sweep_of
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.saying import say
from launcher.base.terminal import width
from launcher.base.units import duration
from launcher.commands._options import add_json, add_runs, print_json, settle
from launcher.commands._sorting import add_sort, in_order
from launcher.rundir import live, status
from launcher.rundir.state import RunState

_HEADINGS = ("run", "state", "step", "last loss", "tokens/s", "left", "saved", "job")

_NEWEST = 20
"""Runs that are shown where none are named: with the heading and the lines behind them they fit 24 lines."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_runs(parser)
    add_sort(parser)
    words = f"the N newest, and those that wait or run (default {_NEWEST}; all with --json, --sort)"
    parser.add_argument("--newest", type=int, metavar="N", help=words)
    parser.add_argument("--all", action="store_true", help="all runs, however many")
    add_json(parser)


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
        rows = in_order(_by_place(rows) if everywhere else rows, options.sort)
        facts = zip(rows, live.read(rows), strict=True)
        print_json({"schema": 1, "runs": [{**row.as_dict(), **now.as_dict()} for row, now in facts], "more": more})
        return 0
    if not runs:
        print("no runs below runs/")
        return 0
    if everywhere:
        say("launch: no runs below runs/; these were recorded in other folders")
    if not options.runs:
        rows = (_by_place(rows) if everywhere else rows)[::-1]
    print("\n".join(_table(in_order(rows, options.sort), placed=everywhere)))
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
    """How many of the newest runs are shown; None for all, among which a program looks and a column is compared."""
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


def _table(rows: Sequence[RunState], *, placed: bool) -> list[str]:
    """A line a run, and below it why it waits or how it ended; with ``placed`` below the folder where it lies."""
    cells = {row: _cells(row, placed=placed) for row in rows}
    widths = [max(len(row[i]) for row in (_HEADINGS, *cells.values())) for i in range(len(_HEADINGS))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()

    lines = [line(_HEADINGS)]
    for place, some in groupby(rows, key=_place):
        lines += [f"in {place}:"] if placed else []
        for row in some:
            lines += [line(cells[row]), *_reason(row)]
    failed = next((cells[row][0] for row in rows if row.state in ("failed", "lost")), None)
    return lines if failed is None else [*lines, f"why: launch why {shlex.quote(failed)}"]


def _place(row: RunState) -> Path:
    """The folder in which the run, its sweep or its group lies."""
    return Path(row.directory).parents[len(Path(row.id).parts) - 1]


def _by_place(rows: Sequence[RunState]) -> list[RunState]:
    """The runs of one folder together, the folder with the newest run last."""
    newest = {_place(row): number for number, row in enumerate(rows)}
    return sorted(rows, key=lambda row: newest[_place(row)])


def _cells(row: RunState, *, placed: bool) -> tuple[str, ...]:
    now = row.progress
    name = row.id if placed else status.name_of(Path(row.directory), folder())
    step = "-" if now.step is None else str(now.step) if now.steps is None else f"{now.step}/{now.steps}"
    loss = "-" if now.loss is None else f"{now.loss:.4f}"
    speed = "-" if now.tokens_per_second is None else f"{now.tokens_per_second:,.0f}"
    left = duration(now.seconds_left) if row.state == "running" else "-"
    left += " by the estimate" if row.state == "running" and now.left_is == "predicted" else ""
    saved = "-" if now.checkpoint_step is None else str(now.checkpoint_step)
    return (name, row.state, step, loss, speed, left, saved, row.job_id or "-")


def _reason(row: RunState) -> Iterator[str]:
    if row.reason is not None:
        yield f"  {row.reason}"
