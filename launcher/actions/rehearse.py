"""Measure one rank of a run alone on this machine, as ``launch rehearse`` does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from launcher.actions.requests import JudgeRequest, compose_run, judge_run, own_measurements
from launcher.actions.trust_gate import require_trust
from launcher.actions.waiting import checking
from launcher.base.errors import ConfigError, ConfigErrors, SubmitError, unreadable
from launcher.base.frozen import dataclass
from launcher.preflight import assess, job_python
from launcher.preflight.assess import Assessment
from launcher.preflight.assess_here import Judging
from launcher.preflight.evidence import not_a_script
from launcher.rehearsing import device, stored
from launcher.rehearsing.choice import MINUTES, STEPS, Request
from launcher.rehearsing.rehearse import Stage, rehearse
from launcher.rehearsing.result import Rehearsal
from launcher.views.rehearsal import Rehearsed


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearseRequest(JudgeRequest):
    """A run, and the rank of it to measure."""

    stage: int | None = None  # A rank of this pipeline stage.
    rank: int | None = None  # This rank.
    all_stages: bool = False  # A rank of every stage that holds something else.
    steps: int = STEPS  # Training steps.
    layers: str | None = None  # Build models of these layers, as typed: ``4`` or ``4,6``.
    minutes: float = MINUTES  # The limit on all of it.


def question_of(options: RehearseRequest) -> Request:
    """Check the options of a rehearsal and make its question; raises ConfigErrors where an option is wrong."""
    errors, layers = [], tuple[int, ...]()
    if options.steps < 1:
        errors.append(ConfigError("--steps", options.steps, "at least one step is trained", [f"--steps {STEPS}"]))
    if not 0 < options.minutes < float("inf"):
        rule = "a time in minutes above zero"
        errors.append(ConfigError("--minutes", options.minutes, rule, [f"--minutes {MINUTES}"]))
    if options.layers is not None:
        words = [word.strip() for word in str(options.layers).split(",")]
        if all(word.isdecimal() and len(word) < 6 for word in words):
            layers = tuple(map(int, words))
        else:
            errors.append(ConfigError("--layers", options.layers, "one number of layers, or two", ["--layers 4,6"]))
    if errors:
        raise ConfigErrors(errors)
    same = {name: getattr(options, name) for name in ("stage", "rank", "all_stages", "steps", "minutes")}
    return Request(**same, layers=layers)


def judge_rehearsed(request: RehearseRequest) -> Assessment:
    """The pre-flight's answer about a valid run, wherever it is for; raises ConfigErrors where the run is wrong."""
    line, own = request.command_line(), own_measurements(wanted=request.measured)
    require_trust(line, trusted=request.trust)
    found = compose_run(line, own)
    with checking(assess.judge if request.native else None) as native:
        assessment = judge_run(found, Judging(native=native, python=job_python.asked, measured=own))
    script = () if assessment.spec.script is None else (not_a_script(assessment.spec),)
    if assessment.errors or script:
        raise ConfigErrors((*assessment.errors, *script))
    return assessment


def rehearse_here(assessment: Assessment, request: Request, say: Callable[[str], None]) -> Rehearsed:
    """Rehearse a valid run on this machine, and keep the answer as evidence for it; JobFailed where that fails."""
    spec = assessment.spec
    if assessment.estimate is None:
        raise AssertionError("a rehearsal of a run that is not valid")
    try:
        folder = stored.new_folder(spec)
        place = Stage(device=device.here(), folder=folder, say=say)
        rehearsal = rehearse(spec, assessment.estimate, request, place)
        stored.keep(folder, rehearsal)
        if not rehearsal.stands_in:
            stored.keep_as_evidence(spec, rehearsal)
    except OSError as error:
        where = getattr(error, "filename", None) or "the folder of rehearsals"
        raise SubmitError(f"{where} cannot be written: {unreadable(error)}") from None
    return answer_of(assessment, rehearsal)


def answer_of(assessment: Assessment, rehearsal: Rehearsal) -> Rehearsed:
    """The answer with the run as it is judged beside it."""
    evidence = assessment.rehearsed if rehearsal.stands_in else rehearsal.evidence
    return Rehearsed(rehearsal=rehearsal, assessment=replace(assessment, rehearsed=evidence))
