"""Stop runs. Each saves a checkpoint first and can be resumed."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
from pathlib import Path

from launcher import state
from launcher.commands.common import add_json, print_json, say
from launcher.commands.status import find
from launcher.errors import ConfigError, ConfigErrors, SubmitError


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("runs", nargs="*", metavar="RUN", help="a run's name or directory")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Ask every run to stop."""
    if not options.runs:
        raise ConfigErrors([ConfigError("RUN", None, "name the runs to cancel", ["launch status"])])
    directories = find(options.runs)
    for directory in directories:
        if not stop(directory):
            say(f"launch: {directory.name} is not running")
    if options.json:
        print_json({"schema": 1, "runs": [state.read(path).as_dict() for path in directories]})
    return 0


def stop(directory: Path, how: signal.Signals = signal.SIGTERM) -> bool:
    """Send a run's processes the signal to save and end; False where it is not running.

    Raises:
        SubmitError: Slurm refuses.
    """
    if state.read(directory).state in state.ENDED:
        return False
    submission = state.read_json(directory / "submission.json") or {}
    (directory / state.CANCEL_REQUEST).touch()
    if submission.get("kind") == "slurm":
        done = subprocess.run(["scancel", submission["job_id"]], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SubmitError(f"scancel {submission['job_id']}: {done.stderr.strip()}")
        state.put(directory, "cancelled", reason="cancelled by scancel")
        return True
    content = state.read_json(directory / "state.json") or {}
    if "process_group" not in content:
        return False
    try:
        os.killpg(content["process_group"], how)
    except ProcessLookupError:
        return False
    return True
