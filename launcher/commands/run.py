"""Compose, check, record and start a run.

cluster=local (the default) runs it on this machine and shows its progress; cluster=slurm submits it, prints job id and
run directory, and returns. Ctrl-C stops a local run after it has saved a checkpoint; a second one ends it at once.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from pathlib import Path

from launcher import machine
from launcher.commands._common import (
    add_engine,
    add_native,
    add_overrides,
    add_trust,
    asked,
    assessed,
    draw,
    folder,
    memory_engine,
    print_json,
    require_one_run,
    require_trust,
    say,
    width,
)
from launcher.errors import ConfigError, ConfigErrors, DoesNotFit, JobFailed
from launcher.job import torchrun
from launcher.job.job import Job
from launcher.preflight.assess import Assessment
from launcher.preflight.plan import Plan, plan
from launcher.preflight.report import as_json, as_text
from launcher.preflight.this_machine import obstacles
from launcher.rundir import failure, state, status
from launcher.rundir.record import directory_of, record


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_overrides(parser)
    add_native(parser)
    add_engine(parser)
    parser.add_argument("--force", action="store_true", help="start what does not fit; the record says so")
    parser.add_argument("-m", "--multirun", action="store_true", help="a sweep: model=1b,7b, range(..), glob(..)")
    parser.add_argument(
        "--from", dest="lock", type=Path, metavar="LOCK", help="repeat a run: its lock, directory or name"
    )
    add_trust(parser)
    parser.add_argument("--debug", action="store_true", help="one rank in the foreground, for pdb")


def run(options: argparse.Namespace) -> int:
    """Start one run and, on this machine, see it through; with -m a sweep."""
    require_one_run(options, "-m" if options.multirun else None)
    if options.multirun:
        require_trust(options)
        from launcher.commands import _sweeping

        return _sweeping.start(options)
    if options.lock is None:
        require_trust(options)
        found = asked(options)
    else:
        from launcher.commands._repeating import from_lock

        found = from_lock(options.lock, options.overrides, trusted=options.trust)
    assessment = assessed(found, memory_engine(options), native=options.native)
    draw(options, assessment)
    _refuse(assessment, options)
    planned = plan(assessment, python=sys.executable)
    directory = directory_of(planned, folder=folder())
    job = record(planned, directory, overrides=found.overrides, forced=options.force)
    if options.debug:
        return _debug(directory, job)
    exit_status = _start(planned, directory, quiet=options.json)
    if options.json:
        row = status.read(directory)
        facts = {"id": row.id, "directory": row.directory, "state": row.state, "job_id": row.job_id}
        print_json({"schema": 1, "run": facts, "check": as_json(assessment)})
    return exit_status


def _refuse(assessment: Assessment, options: argparse.Namespace) -> None:
    """Stop before anything is written.

    Raises:
        ConfigErrors: The configuration is wrong, or this machine cannot run it.
        DoesNotFit: It does not fit, and was not forced.
    """
    errors = list(assessment.errors)
    found = {error.path for error in errors}
    if found <= {"save.load", "model.weights"}:  # What it starts from is no rule that others rest on.
        errors += [error for error in obstacles(assessment.spec, machine.facts()) if error.path not in found]
        if options.debug and assessment.spec.gpus != 1:
            rule = "--debug runs one rank in the foreground"
            errors.append(ConfigError("cluster.gpus_per_node", assessment.spec.gpus, rule, ["cluster.gpus_per_node=1"]))
    if errors:
        raise ConfigErrors(errors)
    if assessment.verdict.name == "does_not_fit" and not options.force:
        say(as_text(assessment, width()))
        if options.json:
            print_json({"schema": 1, "run": None, "check": as_json(assessment)})
        raise DoesNotFit("not started, because it does not fit; --force starts it all the same")
    for warning in assessment.warnings:
        say(f"warning: {warning.path}={warning.found}: {warning.rule}")
    if assessment.verdict.name != "fits":
        say(f"launch: the memory verdict is {assessment.verdict.name.replace('_', ' ')}")


def _start(planned: Plan, directory: Path, *, quiet: bool) -> int:
    from launcher.submission.submit import submit

    job_id = submit(directory, planned.spec)
    if planned.spec.cluster.kind == "slurm":
        if not quiet:
            print(f"job {job_id}  {directory}")
        return 0
    from launcher.commands._following import follow

    return follow(directory, planned.spec, quiet=quiet)


def _debug(directory: Path, job: Job) -> int:
    """Run the one rank in the foreground with the terminal as its own, so that breakpoints work."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    alone |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    state.put(directory, "running", keeper=os.getpid())
    command = torchrun.alone(job.argv)
    exit_status = subprocess.run(command, env={**os.environ, **job.environment, **alone}, check=False).returncode
    reason = failure.explain(directory, exit_status).text if exit_status else None
    state.put(directory, "failed" if exit_status else "finished", reason=reason)
    return JobFailed.exit_status if exit_status else 0
