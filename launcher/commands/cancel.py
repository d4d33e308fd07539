"""Stop runs. One that trains saves a checkpoint first and can be resumed; a second cancel on Slurm ends it at once."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from launcher.commands._common import add_json, add_runs, print_json, say
from launcher.commands._finding import find, settle
from launcher.errors import ConfigError, ConfigErrors, SubmitError
from launcher.rundir import by_files, contents, state, status
from launcher.rundir.state import RunState
from launcher.slurm import jobs


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_runs(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Ask every run to stop.

    Raises:
        SubmitError: A damaged file hides what is to be stopped; or as :func:`stop`.
    """
    if not options.runs:
        raise ConfigErrors([ConfigError("RUN", None, "name the runs to cancel", ["launch status"])])
    settle(options)
    directories = find(options.runs)
    hidden = []
    for directory, stopped in zip(directories, _stop_all(directories, signal.SIGTERM), strict=True):
        name, told = status.name_of(directory, Path.cwd()), by_files.told(directory)
        if not stopped and told.word == "unreadable":
            hidden.append(f"{name} cannot be stopped: {told.reason}")
        elif not stopped:
            say(
                f"launch: {name} is not running"
                + (f": {told.reason}" if told.word == "prepared" and told.reason else "")
            )
    if hidden:  # Nobody can tell what to stop; the others were stopped before.
        raise SubmitError("; ".join(hidden))
    if options.json:
        print_json({"schema": 1, "runs": [row.as_dict() for row in status.read_all(directories)]})
    return 0


def stop(directory: Path, how: signal.Signals) -> bool:
    """Send a run's processes the signal to save and end; False where it is not running.

    Raises:
        SubmitError: Slurm does not answer, or refuses.
    """
    return _stop_all([directory], how)[0]


def _stop_all(directories: Sequence[Path], how: signal.Signals) -> list[bool]:
    """:func:`stop` of many runs, for all of which Slurm is asked once and told once."""
    rows = status.read_all(directories)
    live = dict.fromkeys(row for row in rows if row.state not in (*state.ENDED, "prepared"))
    on_slurm = [row for row in live if status.kind(Path(row.directory)) == "slurm"]
    _stop_jobs(on_slurm)
    stopped = {row for row in live.keys() - on_slurm if _stop_here(Path(row.directory), how)}.union(on_slurm)
    return [row in stopped for row in rows]


def _stop_here(directory: Path, how: signal.Signals) -> bool:
    (directory / state.CANCEL_REQUEST).touch()
    content = contents.known(directory, contents.STATE)
    if "process_group" not in content:
        return False
    try:
        os.killpg(content["process_group"], how)
    except ProcessLookupError:
        return False
    return True


def _stop_jobs(rows: Sequence[RunState]) -> None:
    """Let jobs that train save and end by themselves; end those that wait, start or were asked before."""
    train = {row for row in rows if row.state == "running" and Path(row.directory, "state.json").exists()}
    save = {row for row in train if not Path(row.directory, state.CANCEL_REQUEST).exists()}
    for row in rows:
        Path(row.directory, state.CANCEL_REQUEST).touch()
    refused = jobs.tell((str(row.job_id) for row in rows if row in save), "USR2")
    refused |= jobs.end(str(row.job_id) for row in rows if row not in save)
    for row in rows:
        if row.job_id in refused:
            continue
        if row in save:
            say(f"launch: {row.id} saves a checkpoint and ends; cancel it again to end it at once")
        else:
            reason = "cancelled" if row in train else "cancelled before it had started"
            state.put(Path(row.directory), "cancelled", reason=reason)
    if refused:
        raise SubmitError("; ".join(dict.fromkeys(refused.values())))
