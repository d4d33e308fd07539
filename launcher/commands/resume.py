"""Go on with runs from their newest checkpoint, in their own directories; with a sweep, what has not finished."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from launcher import files
from launcher.commands._common import add_json, add_runs, add_trust, print_json, say
from launcher.commands._finding import find, settle, sweep_of
from launcher.config import trust
from launcher.errors import ConfigError, ConfigErrors
from launcher.rundir import attempts, script_copy, status
from launcher.spec import RunSpec
from launcher.spec.parse import parse
from launcher.submission.submit import resubmit


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_runs(parser)
    add_trust(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Submit each run again; the worker finds its newest checkpoint by itself."""
    if not options.runs:
        raise ConfigErrors([ConfigError("RUN", None, "name the runs to resume", ["launch status"])])
    exit_status = 0
    settle(options)
    directories = find(options.runs)
    sweeps = [found for name in options.runs if (found := sweep_of(name)) is not None]
    _require_own([*sweeps, *(run for run in directories if run.parent not in sweeps)], trusted=options.trust)
    for directory in sweeps:
        from launcher.commands import _sweeping

        if all(status.read(run).state == "finished" for run in directories if run.parent == directory):
            say(f"launch: all runs of {directory.name} are finished; only a sampler may add to them")
        exit_status = max(exit_status, _sweeping.resume(directory, quiet=options.json))
    for directory in directories:
        if directory.parent not in sweeps:
            exit_status = max(exit_status, _resume(directory, quiet=options.json))
    if options.json:
        print_json({"schema": 1, "runs": [row.as_dict() for row in status.read_all(directories)]})
    return exit_status


def _require_own(directories: Sequence[Path], *, trusted: bool) -> None:
    """Ask for ``--trust`` where a run or sweep was not recorded by this user: its ``job.json`` is run as it is.

    Raises:
        ConfigErrors: It was not given.
    """
    foreign = [directory for directory in directories if not status.is_own(directory)]
    if foreign and not trusted:
        raise ConfigErrors(map(_foreign, foreign))
    for directory in foreign:
        status.remember(directory)


def _foreign(directory: Path) -> ConfigError:
    job = files.read_json(directory / "job.json")
    wants = ["composes and runs its points"] if job is None else [f"runs {shlex.join(job['argv'])}"]
    if job is not None:
        wants += trust.needs_of_spec(parse(json.loads((directory / "spec.json").read_text())))
    rule = f"it is no run that you have recorded, or it was moved, and going on with it {'; '.join(wants)}"
    return ConfigError(str(directory), None, rule, ["--trust"])


def _resume(directory: Path, *, quiet: bool) -> int:
    if status.read(directory).state == "finished":
        say(f"launch: {directory.name} is finished; nothing to resume")
        return 0
    spec = parse(json.loads((directory / "spec.json").read_text()))
    _say_if_edited(directory, spec)
    if spec.cluster.kind == "slurm":
        _warn_of_margin(directory, spec.cluster.save_margin_s)
    job_id = resubmit(directory, spec)
    if spec.cluster.kind == "slurm":
        if not quiet:
            print(f"job {job_id}  {directory}")
        return 0
    from launcher.commands._following import follow

    return follow(directory, spec, quiet=quiet)


def _say_if_edited(directory: Path, spec: RunSpec) -> None:
    """Say that the run goes on with the copy of its script where the script is another one by now."""
    folder = Path((files.read_json(directory / "job.json") or {}).get("working_directory", "."))
    if spec.script is not None and script_copy.is_edited(directory, spec, folder):
        copy = script_copy.place(directory, spec.script)
        say(f"launch: {spec.script} is not the run's own copy any more; the run goes on with that, {copy}")
        say("launch: a new run takes the script as it is now")


def _warn_of_margin(directory: Path, margin_s: int) -> None:
    """Say that the time between Slurm's signal and the end is less than the newest checkpoint took."""
    seconds = attempts.checkpoint_seconds(directory)
    if seconds is not None and seconds > margin_s:
        say(
            f"launch: warning: cluster.save_margin_s={margin_s} is shorter than a checkpoint of this run takes, "
            f"{seconds:.0f} s: it would be ended before it has saved"
        )
