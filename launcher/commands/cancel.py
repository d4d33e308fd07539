"""Stop runs. Each saves a checkpoint first and can be resumed; a second cancel of a Slurm run ends it at once."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

from launcher import runs, state
from launcher.commands.common import add_json, print_json, say
from launcher.commands.status import find
from launcher.errors import ConfigError, ConfigErrors, SubmitError
from launcher.slurm.client import SlurmRefused, ask


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("runs", nargs="*", metavar="RUN", help="a run's name, directory or job id")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Ask every run to stop."""
    if not options.runs:
        raise ConfigErrors([ConfigError("RUN", None, "name the runs to cancel", ["launch status"])])
    directories = find(options.runs)
    for directory in directories:
        if not stop(directory):
            say(f"launch: {runs.name_of(directory, Path.cwd())} is not running")
    if options.json:
        print_json({"schema": 1, "runs": [row.as_dict() for row in runs.read_all(directories)]})
    return 0


def stop(directory: Path, how: signal.Signals = signal.SIGTERM) -> bool:
    """Send a run's processes the signal to save and end; False where it is not running.

    Raises:
        SubmitError: Slurm does not answer, or refuses.
    """
    now = runs.read(directory)
    if now.state in (*state.ENDED, "prepared"):
        return False
    if (state.read_json(directory / state.SUBMISSION) or {}).get("kind") == "slurm":
        _stop_job(directory, now)
        return True
    (directory / state.CANCEL_REQUEST).touch()
    content = state.read_json(directory / "state.json") or {}
    if "process_group" not in content:
        return False
    try:
        os.killpg(content["process_group"], how)
    except ProcessLookupError:
        return False
    return True


def _stop_job(directory: Path, now: state.RunState) -> None:
    """Let a job that trains save and end by itself; end one that waits, starts or was asked before."""
    assert now.job_id is not None, "what is no longer prepared has a job"
    asked = (directory / state.CANCEL_REQUEST).exists()
    trains = now.state == "running" and (directory / "state.json").exists()
    (directory / state.CANCEL_REQUEST).touch()
    try:
        if trains and not asked:
            ask("scancel", "--signal=USR2", now.job_id)
            say(f"launch: {now.id} saves a checkpoint and ends; cancel it again to end it at once")
            return
        ask("scancel", now.job_id)
    except SlurmRefused as error:
        raise SubmitError(f"scancel {now.job_id}: {error}") from None
    state.put(directory, "cancelled", reason="cancelled" if trains else "cancelled before it had started")
