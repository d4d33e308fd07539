"""Check, record and start one run, for ``launch`` and ``launcher.run``."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.actions import run_data
from launcher.actions.follow import follow, watch_run
from launcher.actions.requests import (
    JudgeRequest,
    compose_run,
    draw_figure,
    folder,
    judge_run,
    memory_engine,
    own_measurements,
)
from launcher.actions.trust_gate import require_trust
from launcher.actions.waiting import checking
from launcher.base import machine
from launcher.base.errors import ConfigError, ConfigErrors, DoesNotFit, JobFailed, raise_any
from launcher.base.frozen import dataclass
from launcher.base.process import Process
from launcher.base.terminal import say, width
from launcher.data import token_folder
from launcher.data.token_folder import TokenFolder
from launcher.job import Job, torchrun
from launcher.preflight import assess, job_python
from launcher.preflight.assess import Assessment
from launcher.preflight.assess_here import Judging, judge_by_rehearsal
from launcher.preflight.plan import Plan, plan
from launcher.preflight.this_machine import obstacles
from launcher.rundir import failure, loading, lock, state, status
from launcher.rundir.record import directory_of, record
from launcher.spec import RunSpec
from launcher.submission import interrupts
from launcher.submission.submit import submit
from launcher.views.check.text import findings_as_text, heading
from launcher.views.pairs import summary_table

if TYPE_CHECKING:
    from launcher.data.encoding import Preview

_POLL_S = 0.1  # Seconds between polls of a rank in the foreground.

_FILES = {
    "save.load", "model.weights", "data.path", "data.mix", "data.eval_path", "data.eval_sets", "data.column",
    "data.source", "data.tokenizer",
}  # fmt: skip
"""Settings that name files; if only these are wrong, obstacles of this machine are also reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest(JudgeRequest):
    """One run to start."""

    # Repeat this run: a lock, a run directory or a run's name; the words then only override its keys.
    lock: Path | None = None
    force: bool = False  # Start what does not fit; the record says so.
    rehearsed: bool = False  # Use the verdict of its rehearsal instead of the memory estimate's.
    debug: bool = False  # One rank in the foreground.


class Unfit(DoesNotFit):
    """The run was refused because it does not fit; ``assessment`` says why."""

    def __init__(self, assessment: Assessment) -> None:
        self.assessment = assessment
        super().__init__("not started, because it does not fit; --force starts it anyway")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """A checked run with everything that its record needs; ``samples`` are the previews of its data."""

    plan: Plan
    overrides: tuple[str, ...]
    forced: bool
    made_of: Mapping[str, Any]
    samples: "Sequence[Preview]"
    tokens: TokenFolder | None


def prepare_run(request: RunRequest, *, quiet: bool) -> PreparedRun:
    """Check one run and make its token ids here; ConfigErrors if it cannot run, Unfit if it does not fit."""
    if request.lock is not None and request.hf is not None:
        rule = "--from repeats the run of a lock, which already has a model"
        raise ConfigErrors([ConfigError("--hf", str(request.hf), rule, [f"model.weights={request.hf}"])])
    line, own = request.command_line(), own_measurements(wanted=request.measured)
    if request.lock is None:
        require_trust(line, trusted=request.trust)
        found = compose_run(line, own)
    else:
        from launcher.actions.repeat import request_of_lock  # Late, because few runs repeat another.

        found = request_of_lock(request.lock, line.words, trusted=request.trust)
    with checking(assess.judge if request.native else None) as native:
        refined = memory_engine(request.engine)
        assessment = judge_run(found, Judging(refined=refined, native=native, python=job_python.asked, measured=own))
    if request.rehearsed and not assessment.errors:
        assessment = judge_by_rehearsal(assessment, shlex.join(line.words))
    draw_figure(request.plot, assessment)
    _refuse(assessment, request)
    for remark in found.said:
        say(f"launch: {remark}")
    planned = plan(assessment, python=sys.executable)
    samples = run_data.read_previews(planned.spec)
    tokens = _token_ids(planned, quiet=quiet)
    return PreparedRun(
        plan=planned,
        overrides=found.overrides,
        forced=request.force,
        made_of=lock.here(planned.spec.data, with_diff=planned.spec.run.record_diff),
        samples=samples,
        tokens=tokens,
    )


def record_run(run: PreparedRun) -> Path:
    """Record a ready run, which is instant, and return its directory; raises SubmitError if that exists."""
    named = directory_of(run.plan, folder=folder())
    return record(run.plan, named, overrides=run.overrides, forced=run.forced, made_of=run.made_of, tokens=run.tokens)


def _refuse(assessment: Assessment, request: RunRequest) -> None:
    errors = list(assessment.errors)
    wrong = {error.path for error in errors}
    if wrong <= _FILES:  # No other rule depends on the files that it starts from.
        errors += [error for error in obstacles(assessment.spec, machine.facts()) if error.path not in wrong]
        errors += [] if request.trust or "save.load" in wrong else loading.foreign_pickles(assessment.spec)
        if request.debug and assessment.spec.gpus != 1:
            rule = "--debug runs one rank in the foreground"
            errors.append(ConfigError("cluster.gpus_per_node", assessment.spec.gpus, rule, ["cluster.gpus_per_node=1"]))
    raise_any(errors)
    if assessment.verdict.name == "does_not_fit" and not request.force:
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
    """The token ids of a run on this machine, made before anything is recorded; None if a Slurm job makes its own.

    For a data set or tokenizer of the Hub, ids made earlier are recorded, since a job's nodes may not reach the Hub.
    """
    spec = planned.spec
    if not token_folder.is_tokenised(spec):
        return None
    if spec.cluster.kind != "local":
        return run_data.existing_token_ids(spec)
    found, _ = run_data.make_token_ids(spec, quiet=quiet)
    if found.left_out or found.bad_rows.count:
        say(f"launch: {found.text}")
    return found


def start(planned: Plan, directory: Path, *, show: Callable[[str], None] | None) -> int:
    """Submit a recorded run to Slurm, or run it on this machine to its end; returns the exit status."""
    job_id = submit(directory, planned.spec)
    if planned.spec.cluster.kind == "slurm":
        if show is not None:
            show(f"job {job_id}  {directory}")
        return 0
    return follow(directory, planned.spec, show=show)


def wait_for_end(directory: Path, spec: RunSpec, *, show: Callable[[str], None] | None) -> None:
    """Wait for the end of a run on this machine; raises JobFailed, or KeyboardInterrupt if Ctrl-C ended it."""
    if watch_run(directory, spec, quiet=show is None):
        raise KeyboardInterrupt
    ending = status.read(directory)
    if ending.state in ("failed", "lost"):
        raise JobFailed(f"{ending.reason}; its logs: launch logs {shlex.quote(ending.id)}")
    if show is not None:
        show(summary_table(directory))


def _wait(rank: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a rank that handles Ctrl-C itself, for its debugger; other signals are passed on."""
    while rank.poll() is None:
        time.sleep(_POLL_S)
        try:
            interrupts.look()
        except interrupts.Interrupted as interruption:
            if interruption.number != signal.SIGINT:
                rank.send_signal(interruption.number)
    return rank.returncode


def debug(directory: Path, job: Job) -> int:
    """Run the one rank in the foreground, attached to the terminal, so that breakpoints work."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    alone |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with subprocess.Popen(torchrun.one_rank(job.argv), env={**os.environ, **job.environment, **alone}) as rank:
        state.put(directory, "running", keeper=Process.here().as_dict(), agent=Process.of(rank.pid).as_dict())
        exit_status = _wait(rank)
    reason = failure.explain(directory, exit_status).text if exit_status else None
    state.put(directory, "failed" if exit_status else "finished", reason=reason)
    return JobFailed.exit_status if exit_status else 0
