"""The state of runs: those named, or all below runs/; in a folder without runs/, all that were recorded anywhere.

Of a sweep: its points, with what was predicted and what came.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from launcher.commands._common import add_json, add_runs, folder, print_json, say, width
from launcher.errors import ConfigError, ConfigErrors
from launcher.rundir import state, status


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_runs(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print one row a run, or a sweep's table."""
    if len(options.runs) == 1 and (directory := sweep_of(options.runs[0])) is not None:
        from launcher.sweeping import table

        points = table.rows(directory)
        if options.json:
            print_json({"schema": 1, "runs": [row.as_dict() for row in points]})
        else:
            print(table.text(points, width()))
        return 0
    rows = status.read_all(find(options.runs))
    if options.json:
        print_json({"schema": 1, "runs": [row.as_dict() for row in rows]})
        return 0
    if not rows:
        print("no runs below runs/")
        return 0
    columns = [("run", "state", "step", "job", "reason")]
    if not options.runs and not (folder() / "runs").is_dir():
        say("launch: no runs below runs/; these were recorded in other folders")
    names = [status.name_of(Path(row.directory), folder()) for row in rows]
    cells = [(row.state, str(row.step or "-"), row.job_id or "-", row.reason or "") for row in rows]
    columns += [(name, *row) for name, row in zip(names, cells, strict=True)]
    widths = [max(len(row[i]) for row in columns) for i in range(4)]
    for row in columns:
        print("  ".join([*(cell.ljust(size) for cell, size in zip(row[:4], widths, strict=True)), row[4]]).rstrip())
    return 0


def find(names: list[str]) -> list[Path]:
    """Run directories by name.

    Raises:
        ConfigErrors: A name is no run.
    """
    try:
        return status.find(names, folder())
    except FileNotFoundError as error:
        known = [status.name_of(path, folder()) for path in status.find([], folder())[-3:]]
        rule = "no such run: no name below runs/, no path, no job id, and none that was recorded elsewhere"
        raise ConfigErrors([ConfigError("RUN", str(error), rule, known or ["launch status"])]) from None


def sweep_of(name: str) -> Path | None:
    """The folder of the sweep of that name or path; None where it is none."""
    candidates = (folder() / "runs" / name, folder() / name)
    return next((path for path in candidates if (path / state.SWEEP).is_file()), None)
