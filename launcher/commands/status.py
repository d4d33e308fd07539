"""The state of runs: those named, or all below runs/; in a folder without runs/, all that were recorded anywhere.

Of a run that trains its step, loss, speed and the time that is left; of one that waits, what it waits for; of a sweep
its points, with what was predicted, what came, and the best one with the line that repeats it.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from launcher.commands._common import add_json, add_runs, folder, print_json, say, width
from launcher.commands._finding import find, settle, sweep_of
from launcher.commands._sorting import add_sort, in_order
from launcher.rundir import live, status
from launcher.rundir.state import RunState
from launcher.text.units import duration

_HEADINGS = ("run", "state", "step", "last loss", "tokens/s", "left", "saved", "job")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_runs(parser)
    add_sort(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print one row a run, or a sweep's table."""
    settle(options)
    if len(options.runs) == 1 and (directory := sweep_of(options.runs[0])) is not None:
        _sweep(directory, options)
        return 0
    everywhere = not options.runs and not (folder() / "runs").is_dir()
    rows = status.read_all(find(options.runs))
    rows = in_order(_by_place(rows) if everywhere else rows, options.sort)
    if options.json:
        facts = zip(rows, live.read(rows), strict=True)
        print_json({"schema": 1, "runs": [{**row.as_dict(), **now.as_dict()} for row, now in facts]})
        return 0
    if not rows:
        print("no runs below runs/")
        return 0
    if everywhere:
        say("launch: no runs below runs/; these were recorded in other folders")
    print("\n".join(_table(rows, placed=everywhere)))
    return 0


def _sweep(directory: Path, options: argparse.Namespace) -> None:
    from launcher.sweeping import table

    points = in_order(table.rows(directory), options.sort)
    best = table.best(points)
    if options.json:
        found = None
        if best is not None:
            loss = table.basis(points).loss(best.trained)
            found = {"point": best.point.id, "loss": loss, "overrides": table.words(directory, best)}
        print_json({"schema": 1, "runs": [row.as_dict() for row in points], "best": found})
        return
    print(table.text(points, width()))
    if said := table.best_line(directory, best, points):
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
    failed = [cells[row][0] for row in rows if row.state in ("failed", "lost")]
    return [*lines, f"why: launch why {shlex.quote(failed[-1])}"] if failed else lines


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
