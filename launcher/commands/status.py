"""Show the state of runs: those named, or the newest below runs/; in a folder without runs/, of all recorded anywhere.

Queued and running runs are always shown, with the number of others, which `--all` shows. A training run shows its step,
loss, speed and the time left; a queued one what it waits for; a sweep its points, with predictions and measurements,
and the best one with the command that repeats it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.actions.requests import folder
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.base.terminal import say, width
from launcher.commands._options import add_shared, named_runs, print_answer, print_json
from launcher.rundir import live, status
from launcher.rundir.status import RunState
from launcher.spec.parse import closest
from launcher.views.runs import by_place, table

if TYPE_CHECKING:
    from launcher.sweeping.sweep import Row

_NEWEST = 20  # Runs shown by default: with the heading and the lines after the table they fit 24 lines.

_HEADINGS = {
    "run": "id", "job": "job_id", "tokens/s": "tokens_per_second", "left": "seconds_left", "saved": "checkpoint_step",
    "predicted": "predicted_bytes", "measured": "measured_bytes",
}  # fmt: skip
"""Keys in ``--json`` by the heading of their column in the tables; other columns have the key as heading."""

_BEST_IS_MOST = ("tokens_per_second", "step")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_shared(parser, "runs")
    words = "sort by a column, or a swept key, best first (lowest loss, highest tokens/s); -COLUMN: reversed"
    parser.add_argument("--sort", metavar="COLUMN", help=words)
    words = f"the N newest, and all queued and running (default {_NEWEST}; all with --json, --sort)"
    parser.add_argument("--newest", type=int, metavar="N", help=words)
    parser.add_argument("--all", action="store_true", help="all runs, however many")
    add_shared(parser, "--json")


def run(options: argparse.Namespace) -> int:
    """Print one row per run, or a sweep's table."""
    _require_a_number(options)
    found = named_runs(options)
    if found.sweep is not None:
        _sweep(found.sweep, options)
        return 0
    everywhere = not options.runs and not (folder() / "runs").is_dir()
    runs = found.runs
    count = _count(options)
    rows = status.read_all(runs) if count is None else status.read_newest(runs, count)
    more = len(runs) - len(rows)
    if options.json:
        rows = _in_order(by_place(rows) if everywhere else rows, options.sort)
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
    print("\n".join(table(_in_order(rows, options.sort), placed=everywhere, folder=folder())))
    if more:
        print(f"{more:,} more that are neither queued nor running: launch status --all")
    return 0


def _require_a_number(options: argparse.Namespace) -> None:
    count, ways = options.newest, ["--newest 20", "--all"]
    if count is not None and count < 0:
        raise ConfigErrors([ConfigError("--newest", count, "must be a number of runs, 0 or more", ways)])
    if count is not None and (options.all or options.runs):
        other = "--all" if options.all else "RUN"
        raise ConfigErrors([ConfigError("--newest", count, f"{other} selects the runs: use only one of them", ways)])


def _count(options: argparse.Namespace) -> int | None:
    if options.newest is not None:
        return int(options.newest)
    return None if options.runs or options.all or options.json or options.sort else _NEWEST


def _sweep(directory: Path, options: argparse.Namespace) -> None:
    from launcher.sweeping import sweep
    from launcher.views import runs

    points = _in_order(sweep.rows(directory), options.sort)
    best = sweep.best(points)
    found = None
    if best is not None:
        loss = sweep.basis(points).loss(best.trained)
        found = {"point": best.point.id, "loss": loss, "overrides": sweep.words(directory, best)}
    texts = (runs.sweep_text(points, width()), runs.best_line(directory, best, points))
    document = {"schema": 1, "runs": [row.as_dict() for row in points], "best": found}
    print_answer(options, lambda: document, lambda: "\n".join(filter(None, texts)))


def _in_order[R: RunState | Row](rows: Sequence[R], column: str | None) -> list[R]:
    """The rows sorted by a column, best first and rows without a value last; unchanged without a column."""
    if column is None or not rows:
        return list(rows)
    name, backwards = column.removeprefix("-"), column.startswith("-")
    tables = {id(row): _columns(row.as_dict()) for row in rows}
    known = list(dict.fromkeys(key for table in tables.values() for key in table))
    key = _HEADINGS.get(name, name)
    if key not in known:
        near = closest(name, [*known, *_HEADINGS]) or known
        raise ConfigErrors([ConfigError("--sort", column, "no such column", [f"--sort {word}" for word in near])])
    ranked = [row for row in rows if tables[id(row)].get(key) is not None]
    most_first = (key in _BEST_IS_MOST) != backwards
    ranked.sort(key=lambda row: _rank(tables[id(row)][key]), reverse=most_first)
    return [*ranked, *(row for row in rows if tables[id(row)].get(key) is None)]


def _columns(row: JsonObject) -> JsonObject:
    plain = {key: value for key, value in row.items() if not isinstance(value, list | dict | tuple)}
    typed = (word.partition("=") for word in row.get("overrides", ()))
    return {**plain, **{key: value for key, _, value in typed}}


def _rank(value: object) -> tuple[int, float, str]:
    try:
        return 0, float(str(value)), ""
    except ValueError:
        return 1, 0.0, str(value)
