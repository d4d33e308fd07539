"""Compose, check, record and start a run.

cluster=local (the default) runs it on this machine and shows its progress; cluster=slurm submits it, prints job id and
run directory, and returns. Ctrl-C stops a local run after it has saved a checkpoint; a second one ends it at once.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.base import machine
from launcher.base.errors import ConfigError, ConfigErrors, DoesNotFit, JobFailed
from launcher.base.process import Process
from launcher.commands import _preview
from launcher.commands._common import (
    add_engine,
    add_hf,
    add_measured,
    add_native,
    add_overrides,
    add_trust,
    asked,
    assessed,
    draw,
    folder,
    measured,
    memory_engine,
    print_json,
    require_one_run,
    say,
    take_hf,
    width,
)
from launcher.commands._importing import add_partial, take_partial
from launcher.commands._trusting import require_trust
from launcher.commands._waiting import checking
from launcher.data import token_folder
from launcher.data.token_folder import TokenFolder
from launcher.job import torchrun
from launcher.job.job import Job
from launcher.preflight import assess, evidence, job_python
from launcher.preflight.assess import Assessment
from launcher.preflight.plan import Plan, plan
from launcher.preflight.report import as_json, as_text, findings_as_text, heading
from launcher.preflight.this_machine import obstacles
from launcher.rundir import failure, loading, lock, state, status
from launcher.rundir.record import directory_of, record
from launcher.spec import RunSpec
from launcher.submission import interrupts

if TYPE_CHECKING:
    from launcher.data.preview import Preview


_POLL_S = 0.1


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_overrides(parser)
    add_native(parser)
    add_engine(parser)
    add_measured(parser)
    add_hf(parser)
    add_partial(parser)
    parser.add_argument("--force", action="store_true", help="start what does not fit; the record says so")
    words = "start by what `launch rehearse` has measured of it, in place of the memory estimate"
    parser.add_argument("--rehearsed", action="store_true", help=words)
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
        take_partial(options)
        require_trust(options)
        from launcher.commands import _sweeping

        return _sweeping.start(options)
    try:
        found = ready(options, quiet=options.json)
    except Unfit as refused:
        say(as_text(refused.assessment, width()))
        if options.json:
            print_json({"schema": 1, "run": None, "check": as_json(refused.assessment)})
        raise
    with interrupts.held():  # From the record on the run is started, or removed.
        one = recorded(found)
        try:
            exit_status = _begin(one, options)
        except KeyboardInterrupt:
            from launcher.submission.submit import forget

            forget(one.directory)
            raise
    if options.json and not options.debug:
        row = status.read(one.directory)
        facts = {"id": row.id, "directory": row.directory, "state": row.state, "job_id": row.job_id}
        print_json({"schema": 1, "run": facts, "check": _preview.as_json(as_json(one.plan.assessment), one.samples)})
    return exit_status


def _begin(one: Recorded, options: argparse.Namespace) -> int:
    if not options.json:
        _preview.show(one.samples)
    interrupts.look()
    if options.debug:
        return _debug(one.directory, one.job)
    return _start(one.plan, one.directory, quiet=options.json)


class Unfit(DoesNotFit):
    """The run was judged and refused because it does not fit; ``assessment`` says why."""

    def __init__(self, assessment: Assessment) -> None:
        """Keep the judgement."""
        self.assessment = assessment
        super().__init__("not started, because it does not fit; --force starts it all the same")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A run that was judged and has its directory: all but its start."""

    plan: Plan
    directory: Path
    job: Job
    samples: Sequence[Preview]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A run that was judged, with all that its record takes."""

    plan: Plan
    overrides: tuple[str, ...]
    forced: bool
    made_of: Mapping[str, Any]
    samples: Sequence[Preview]
    tokens: TokenFolder | None


def ready(options: argparse.Namespace, *, quiet: bool) -> Ready:
    """Judge one run, and make its token ids on this machine.

    Raises:
        ConfigErrors: The configuration is wrong, or this machine cannot run it.
        Unfit: It does not fit, and was not forced.
    """
    if options.lock is not None and options.hf is not None:
        rule = "--from repeats the run of a lock, and that has a model"
        raise ConfigErrors([ConfigError("--hf", str(options.hf), rule, [f"model.weights={options.hf}"])])
    take_hf(options)
    take_partial(options)
    if options.lock is None:
        require_trust(options)
        found = asked(options)
    else:
        from launcher.commands._repeating import from_lock

        found = from_lock(options.lock, options.overrides, trusted=options.trust)
    how: dict[str, Any] = {"python": job_python.asked, "measured": measured(options)}
    with checking(assess.judge if options.native else None) as native:
        assessment = assessed(found, memory_engine(options), native=native, **how)
    if options.rehearsed and not assessment.errors:
        assessment = evidence.demanded(assessment, shlex.join(options.overrides))
    draw(options, assessment)
    _refuse(assessment, options)
    for line in found.said:
        say(f"launch: {line}")
    planned = plan(assessment, python=sys.executable)
    samples = _preview.previews(planned.spec)
    tokens = _token_ids(planned, quiet=quiet)
    return Ready(
        plan=planned,
        overrides=found.overrides,
        forced=options.force,
        made_of=lock.here(planned.spec.data, with_diff=planned.spec.run.record_diff),
        samples=samples,
        tokens=tokens,
    )


def recorded(found: Ready) -> Recorded:
    """Record a run that is ready, which takes no time.

    Raises:
        SubmitError: The run directory cannot be written, or is taken.
    """
    named = directory_of(found.plan, folder=folder())
    how: dict[str, Any] = {"forced": found.forced, "made_of": found.made_of, "tokens": found.tokens}
    directory = record(found.plan, named, overrides=found.overrides, **how)
    job = found.plan.job.at(str(directory))
    return Recorded(plan=found.plan, directory=directory, job=job, samples=found.samples)


_FILES = {"save.load", "model.weights", "data.path", "data.column", "data.source", "data.tokenizer"}


def _refuse(assessment: Assessment, options: argparse.Namespace) -> None:
    """Stop before anything is written.

    Raises:
        ConfigErrors: The configuration is wrong, or this machine cannot run it.
        Unfit: It does not fit, and was not forced.
    """
    errors = list(assessment.errors)
    found = {error.path for error in errors}
    if found <= _FILES:  # What it starts from is no rule that others rest on.
        errors += [error for error in obstacles(assessment.spec, machine.facts()) if error.path not in found]
        errors += [] if options.trust or "save.load" in found else loading.foreign_pickles(assessment.spec)
        if options.debug and assessment.spec.gpus != 1:
            rule = "--debug runs one rank in the foreground"
            errors.append(ConfigError("cluster.gpus_per_node", assessment.spec.gpus, rule, ["cluster.gpus_per_node=1"]))
    if errors:
        raise ConfigErrors(errors)
    if assessment.verdict.name == "does_not_fit" and not options.force:
        raise Unfit(assessment)
    if assessment.rehearsed is not None:
        say(f"launch: {assessment.rehearsed.as_text(assessment.spec)}")
    if assessment.warnings:
        say("\n".join(findings_as_text("warning", assessment.warnings, width())))
    if assessment.verdict.name != "fits":
        say(f"launch: {heading(assessment)[1]}")
    if assessment.verdict.name == "tight" and assessment.fixes:
        first = assessment.fixes[0]
        say(f"launch: this would leave room: {' '.join(first.overrides)} ({first.price})")


def _token_ids(planned: Plan, *, quiet: bool) -> TokenFolder | None:
    """The token ids of a run on this machine, made before anything is recorded; a Slurm job makes its own."""
    spec = planned.spec
    if spec.cluster.kind != "local" or not token_folder.is_tokenised(spec):
        return None
    from launcher.commands import _preparing

    found, _ = _preparing.make(spec, quiet=quiet)
    if found.left_out or found.bad_rows.count:
        say(f"launch: {found.text}")
    return found


def _start(planned: Plan, directory: Path, *, quiet: bool) -> int:
    from launcher.submission.submit import submit

    job_id = submit(directory, planned.spec)
    if planned.spec.cluster.kind == "slurm":
        if not quiet:
            print(f"job {job_id}  {directory}")
        return 0
    from launcher.commands._following import follow

    return follow(directory, planned.spec, quiet=quiet)


def seen_through(directory: Path, spec: RunSpec, *, quiet: bool) -> None:
    """Wait for the end of a run on this machine, for a program that is to go on only where it went well.

    Raises:
        JobFailed: It failed.
        KeyboardInterrupt: Ctrl-C, or a notebook's stop, has ended it.
    """
    from launcher.commands._following import table, watched

    if watched(directory, spec, quiet=quiet):
        raise KeyboardInterrupt
    ending = status.read(directory)
    if ending.state in ("failed", "lost"):
        raise JobFailed(f"{ending.reason}; its logs: launch logs {shlex.quote(ending.id)}")
    if not quiet:
        print(table(directory))


def _watched(rank: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a rank to which Ctrl-C belongs, as its debugger's; other signals are passed on."""
    while rank.poll() is None:
        time.sleep(_POLL_S)
        try:
            interrupts.look()
        except interrupts.Interrupted as interruption:
            if interruption.number != signal.SIGINT:
                rank.send_signal(interruption.number)
    return rank.returncode


def _debug(directory: Path, job: Job) -> int:
    """Run the one rank in the foreground with the terminal as its own, so that breakpoints work."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    alone |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with subprocess.Popen(torchrun.alone(job.argv), env={**os.environ, **job.environment, **alone}) as rank:
        agent = Process.of(rank.pid).as_dict()
        state.put(directory, "running", keeper=Process.here().as_dict(), agent=agent)
        exit_status = _watched(rank)
    reason = failure.explain(directory, exit_status).text if exit_status else None
    state.put(directory, "failed" if exit_status else "finished", reason=reason)
    return JobFailed.exit_status if exit_status else 0
