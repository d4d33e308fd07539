"""Measure one rank of a run alone, for ``launch rehearse``: here, or as a one-GPU Slurm job whose answer is read later.

The job uses the profile of the run's cluster, on one node with one GPU, its share of the node's processors and memory,
and a time limit of minutes. ``launch status`` lists it like any run.
"""

import json
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from launcher.actions.find_runs import named
from launcher.actions.requests import JudgeRequest, Output, compose_run, folder, judge_run, own_measurements
from launcher.actions.trust_gate import require_trust
from launcher.actions.waiting import checking
from launcher.base import files, typed
from launcher.base.errors import ConfigError, ConfigErrors, JobFailed, SubmitError, raise_any, unreadable
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.terminal import say
from launcher.base.units import GIB, bytes_of
from launcher.job import RUN, Job
from launcher.preflight import assess, evidence, job_python
from launcher.preflight.assess import Assessment, as_json
from launcher.preflight.assess_here import Judging
from launcher.preflight.evidence import not_rehearsed
from launcher.preflight.plan import Plan, translate
from launcher.rehearsing import choice, device, result
from launcher.rehearsing.choice import FILE, MINUTES, STEPS, Request
from launcher.rehearsing.rehearse import Stage, rehearse
from launcher.rehearsing.result import Rehearsal
from launcher.rundir import contents, lock, signature, status
from launcher.rundir.record import directory_for, record
from launcher.rundir.status import RunState
from launcher.spec import RunSpec
from launcher.spec.edit import changed_at
from launcher.spec.parse import parse, to_dict
from launcher.spec.training import ALONE, SYNTHETIC
from launcher.submission import interrupts
from launcher.submission import submit as submission
from launcher.views.rehearsal import Rehearsed


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearseRequest(JudgeRequest):
    """A run, and the rank of it to measure."""

    stage: int | None = None  # A rank of this pipeline stage.
    rank: int | None = None  # This rank.
    all_stages: bool = False  # One rank of every stage that holds something different.
    steps: int = STEPS  # Training steps.
    layers: str | None = None  # Build models with these numbers of layers, as typed: ``4`` or ``4,6``.
    minutes: float = MINUTES  # Limit on the whole rehearsal.


def question_of(options: RehearseRequest) -> Request:
    """Check the options of a rehearsal and make its request; raises ConfigErrors if an option is wrong."""
    errors, layers = [], tuple[int, ...]()
    if options.steps < 1:
        errors.append(ConfigError("--steps", options.steps, "must train at least one step", [f"--steps {STEPS}"]))
    if not 0 < options.minutes < float("inf"):
        rule = "must be a time in minutes above zero"
        errors.append(ConfigError("--minutes", options.minutes, rule, [f"--minutes {MINUTES}"]))
    if options.layers is not None:
        words = [word.strip() for word in str(options.layers).split(",")]
        if all(word.isdecimal() and len(word) < 6 for word in words):
            layers = tuple(map(int, words))
        else:
            errors.append(ConfigError("--layers", options.layers, "one or two numbers of layers", ["--layers 4,6"]))
    raise_any(errors)
    same = {name: getattr(options, name) for name in ("stage", "rank", "all_stages", "steps", "minutes")}
    return Request(**same, layers=layers)


def judge_rehearsed(request: RehearseRequest) -> Assessment:
    """The check of a valid run, for whatever machine it is meant; raises ConfigErrors if the run is invalid."""
    line, own = request.command_line(), own_measurements(wanted=request.measured)
    require_trust(line, trusted=request.trust)
    found = compose_run(line, own)
    with checking(assess.judge if request.native else None) as native:
        assessment = judge_run(found, Judging(native=native, python=job_python.asked, measured=own))
    raise_any((*assessment.errors, *not_rehearsed(assessment.spec)))
    return assessment


def rehearse_here(assessment: Assessment, request: Request, say: Callable[[str], None]) -> Rehearsed:
    """Rehearse a valid run on this machine and keep the answer as evidence for it; JobFailed if that fails."""
    spec = assessment.spec
    assert assessment.estimate is not None, "a rehearsal of a run that is not valid"
    try:
        folder = result.new_folder(spec)
        rehearsal = rehearse(spec, assessment.estimate, request, Stage(device=device.here(), folder=folder, say=say))
        result.keep(folder, rehearsal)
        if not rehearsal.stands_in:
            result.keep_as_evidence(spec, rehearsal)
    except OSError as error:
        where = getattr(error, "filename", None) or "the folder of rehearsals"
        raise SubmitError(f"{where} cannot be written: {unreadable(error)}") from None
    return answer_of(assessment, rehearsal)


def answer_of(assessment: Assessment, rehearsal: Rehearsal) -> Rehearsed:
    """The answer, with the check of the run."""
    evidence = assessment.rehearsed if rehearsal.stands_in else rehearsal.evidence
    return Rehearsed(rehearsal=rehearsal, assessment=replace(assessment, rehearsed=evidence))


_START_MIN = 5
"""Minutes added for the start of the job: imports, and pulling a container."""

_LEAST_GIB = 32  # Host memory of a job that shares a node: Python, torch, CUDA and a model while it is loaded.
_LIVE = ("queued", "running", "requeued")


def submit(run: JudgeRequest, assessment: Assessment, request: Request, *, again: bool) -> Rehearsed | Output:
    """Submit a rehearsal, unless these words have an answer or one is pending; returns the answer, else the job.

    ``again`` submits it anyway. Raises ConfigErrors if the words are wrong or Slurm refuses the job, SubmitError if it
    could not be submitted or recorded.
    """
    spec = assessment.spec
    earlier = None if again else evidence.submitted(evidence.place(spec))
    if earlier is not None and contents.exists(earlier, FILE) and _request(earlier) == request:
        rehearsal = result.read(earlier)
        if rehearsal is not None:
            say(f"launch: this is the answer of {earlier}; --again measures again")
            return answer_of(assessment, rehearsal)
        row = status.read(earlier)
        if row.state in _LIVE:
            return _job(row, assessment)
    assert assessment.estimate is not None, "a rehearsal of a run that is not valid"
    choice.ranks(spec, assessment.estimate, request)  # Refused here, since the job would refuse it after it has waited.
    if request.layers:
        choice.asked(spec, request.layers)
    with interrupts.held():
        directory, own = _record(run.command_line().words, assessment, request)
        submission.submit(directory, own)
        try:
            result.note_submitted(spec, directory)
        except OSError as error:
            by_name = "`launch rehearse --results` finds it by name"
            say(f"launch: the rehearsal could not be recorded: {unreadable(error)}; {by_name}")
    return _job(status.read(directory), assessment)


def _record(words: Sequence[str], assessment: Assessment, request: Request) -> tuple[Path, RunSpec]:
    spec = assessment.spec
    own = _on_one_gpu(spec, request)
    question = json.dumps({"schema": 1, "spec": to_dict(spec), "request": asdict(request)}, indent=1)
    like = translate(spec, python=sys.executable)
    job = Job(
        argv=(like.argv[0], "-P", "-m", "launcher.rehearsing", "--run", RUN),
        worker_argv=(),
        environment=like.environment,
        nodes=1,
        gpus_per_node=1,
        files={FILE: question},
        pass_environment=like.pass_environment,
    )
    directory = directory_for(own, f"rehearse-{spec.model.name}-{spec.hash[:6]}", folder=folder())
    made_of = lock.here(own.data, with_diff=spec.run.record_diff)
    planned = Plan(spec=own, assessment=assessment, job=job)
    return record(planned, directory, overrides=tuple(words), forced=True, made_of=made_of), own


def _on_one_gpu(spec: RunSpec, request: Request) -> RunSpec:
    cluster, minutes = spec.cluster, math.ceil(request.minutes) + _START_MIN
    share = max(1, (cluster.cpus_per_node or 0) // cluster.gpus_per_node)
    settings: dict[str, object] = {
        "cluster.nodes": 1,
        "cluster.gpus_per_node": 1,
        "cluster.cpus_per_node": None if cluster.cpus_per_node is None else share,
        "cluster.memory": _memory(spec),
        "cluster.time_limit_min": min(minutes, cluster.time_limit_min or minutes),
        "cluster.requeues": 0,
        "cluster.probe": False,
        "run.name": None,
        "run.directory": None,
        **SYNTHETIC,
        **ALONE,
        "save.load": None,
    }
    return changed_at(spec, settings)


def _memory(spec: RunSpec) -> str | None:
    """One GPU's share of the node's memory; a request per GPU or CPU, or for a whole node, stays as it is."""
    cluster = spec.cluster
    size = None if cluster.memory is None else bytes_of(cluster.memory)
    if cluster.memory_request != "mem" or size is None or size == 0 or cluster.exclusive:
        return cluster.memory
    whole = size // GIB
    return f"{min(whole, max(_LEAST_GIB, whole // cluster.gpus_per_node))}G" if whole else cluster.memory


def _job(row: RunState, assessment: Assessment) -> Output:
    facts = {"id": row.id, "directory": row.directory, "state": row.state, "job_id": row.job_id}
    said = f"launch: the rehearsal is {row.state}; its answer: launch rehearse --results {row.id}"
    document = {"schema": 1, "rehearse": None, "run": facts, "check": as_json(assessment)}
    return Output(document=document, text=f"job {row.job_id}  {row.directory}", said=(said,))


def read_answer(run: str, words: Sequence[str]) -> Rehearsed | Output:
    """The answer of a submitted rehearsal, kept as evidence, or its job while it is pending; raises JobFailed."""
    if words:
        rule = "it shows a submitted rehearsal and takes no words of a run"
        raise ConfigErrors([ConfigError("--results", " ".join(words), rule, [f"--results {run}"])])
    [directory, *more] = named([run]).runs
    if more or not contents.exists(directory, FILE):
        rule = "it is not a submitted rehearsal"
        raise ConfigErrors([ConfigError("--results", run, rule, ["launch status"])])
    spec, rehearsal = parse(_question(directory)["spec"]), result.read(directory)
    assessment = assess.assess(spec)
    if rehearsal is None:
        row = status.read(directory)
        if row.state in _LIVE:
            return _job(row, assessment)
        why = row.reason or f"it is {row.state} and has no answer"
        raise JobFailed(f"the rehearsal failed: {why}; its logs: launch logs {shlex.quote(row.id)}")
    try:
        if not rehearsal.stands_in and signature.is_own(directory):  # A verdict uses only the user's own results.
            result.keep_as_evidence(spec, rehearsal)
    except OSError as error:
        say(f"launch: the answer is not kept for later runs: {unreadable(error)}")
    return answer_of(assessment, rehearsal)


def _question(directory: Path) -> JsonObject:
    try:
        content = files.load_json(directory / FILE)
    except (OSError, ValueError) as error:
        raise SubmitError(f"{directory / FILE} cannot be read: {unreadable(error)}") from None
    return dict(content)


def _request(directory: Path) -> Request | None:
    try:
        return typed.read(Request, _question(directory).get("request"))
    except (SubmitError, typed.Unfit):
        return None
