"""Stop runs. A training run saves a checkpoint first and can be resumed; a second cancel on Slurm ends it at once.

The request is a file in the run's folder, so a run can be canceled from any host that sees the folder.
"""

import argparse
import signal
from pathlib import Path

from launcher.actions.stop import stop_all
from launcher.base.errors import ConfigError, ConfigErrors, SubmitError
from launcher.base.terminal import say
from launcher.commands._options import add_shared, named_runs, print_json
from launcher.rundir import run_names, status


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_shared(parser, "runs", "--json")


def run(options: argparse.Namespace) -> int:
    """Ask every run to stop; raises SubmitError if a damaged file hides the job to stop."""
    if not options.runs:
        raise ConfigErrors([ConfigError("RUN", None, "name the runs to cancel", ["launch status"])])
    directories = named_runs(options).runs
    hidden = []
    for directory, stopped in zip(directories, stop_all(directories, signal.SIGTERM), strict=True):
        name, told = run_names.name_of(directory, Path.cwd()), status.read_files(directory)
        if not stopped and told.word == "unreadable":
            hidden.append(f"{name} cannot be stopped: {told.reason}")
        elif stopped and status.kind(directory) != "slurm":  # Slurm's answer is already printed.
            say(f"launch: {name} was asked to stop; `launch status {name}` shows when it has")
        elif not stopped:
            why = f": {told.reason}" if told.word in ("prepared", "failed") and told.reason else ""
            say(f"launch: {name} is not running{why}")
    if hidden:  # It is unknown which job to stop; the other runs have been stopped.
        raise SubmitError("; ".join(hidden))
    if options.json:
        print_json({"schema": 1, "runs": [row.as_dict() for row in status.read_all(directories)]})
    return 0
