"""Measure one rank of a run, alone on one device, before the run is started.

The real worker runs as rank R of the run's ranks with real tensors and kernels, on this machine's one GPU, or on its
processor what fits it; a process group of its own answers for the other ranks. By default it is the rank that needs the
most. Where the whole model is too much, models of two depths are built and the rest is extrapolated. With cluster=slurm
it is a job of one GPU and a few minutes, whose answer is shown when it is asked again, or with --results RUN.

Exit status: 0 it was measured, and fits or nothing was decided, 2 the words are wrong, 3 it does not fit, 4 the
submission failed, 5 the rehearsal itself failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from launcher.base.errors import ConfigError, ConfigErrors, DoesNotFit, SubmitError, unreadable
from launcher.commands._common import (
    add_hf,
    add_measured,
    add_native,
    add_overrides,
    add_trust,
    asked,
    assessed,
    measured,
    print_json,
    say,
    take_hf,
    width,
)
from launcher.commands._importing import add_partial, take_partial
from launcher.commands._trusting import require_trust
from launcher.commands._waiting import checking
from launcher.preflight import assess, job_python
from launcher.preflight.assess import Assessment
from launcher.preflight.evidence import not_a_script
from launcher.rehearsing import device, kept
from launcher.rehearsing.answer import Rehearsed
from launcher.rehearsing.rehearse import Stage, rehearse
from launcher.rehearsing.request import MINUTES, STEPS, Request


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_overrides(parser)
    parser.add_argument("--stage", type=int, metavar="K", help="a rank of this pipeline stage, from 0")
    parser.add_argument("--rank", type=int, metavar="R", help="this rank of the run, from 0")
    parser.add_argument("--all-stages", action="store_true", help="a rank of every stage that holds something else")
    words = f"training steps ({STEPS}): the memory of the first two is followed, the rest are timed"
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=words)
    words = "build models of these layers, and not what the device can hold: one depth, or two to extrapolate from"
    parser.add_argument("--layers", metavar="N[,M]", help=words)
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, metavar="M", help=f"the limit on all of it ({MINUTES})"
    )
    words = "the answer of a rehearsal that was submitted, by its run's name, directory or job id"
    parser.add_argument("--results", metavar="RUN", help=words)
    parser.add_argument("--again", action="store_true", help="submit it again although it has an answer, or waits")
    add_hf(parser)
    add_partial(parser)
    add_native(parser)
    add_measured(parser)
    add_trust(parser)


def run(options: argparse.Namespace) -> int:
    """Rehearse here, or submit it, or show the answer of one that was submitted."""
    if options.results is not None:
        from launcher.commands import _rehearse_job

        return _rehearse_job.show(options)
    request = request_of(options)
    assessment = judged(options)
    if assessment.spec.cluster.kind == "slurm":
        from launcher.commands import _rehearse_job

        return _rehearse_job.submit(options, assessment, request)
    return told(options, here(assessment, request, say))


def request_of(options: argparse.Namespace) -> Request:
    """The question of a command line.

    Raises:
        ConfigErrors: An option is wrong.
    """
    errors = []
    if options.steps < 1:
        errors.append(ConfigError("--steps", options.steps, "at least one step is trained", [f"--steps {STEPS}"]))
    if not 0 < options.minutes < float("inf"):
        rule = "a time in minutes above zero"
        errors.append(ConfigError("--minutes", options.minutes, rule, [f"--minutes {MINUTES}"]))
    layers: tuple[int, ...] = ()
    if options.layers is not None:
        words = [word.strip() for word in str(options.layers).split(",")]
        if all(word.isdecimal() and len(word) < 6 for word in words):
            layers = tuple(map(int, words))
        else:
            errors.append(ConfigError("--layers", options.layers, "one number of layers, or two", ["--layers 4,6"]))
    if errors:
        raise ConfigErrors(errors)
    return Request(
        stage=options.stage,
        rank=options.rank,
        all_stages=options.all_stages,
        steps=options.steps,
        layers=layers,
        minutes=options.minutes,
    )


def judged(options: argparse.Namespace) -> Assessment:
    """The pre-flight's answer about a valid run, wherever it is for.

    Raises:
        ConfigErrors: The configuration is wrong.
    """
    take_hf(options)
    take_partial(options)
    require_trust(options)
    found = asked(options)
    how: dict[str, Any] = {"python": job_python.asked, "measured": measured(options)}
    with checking(assess.judge if options.native else None) as native:
        assessment = assessed(found, native=native, **how)
    script = () if assessment.spec.script is None else (not_a_script(assessment.spec),)
    if assessment.errors or script:
        raise ConfigErrors((*assessment.errors, *script))
    return assessment


def here(assessment: Assessment, request: Request, told_to: Callable[[str], None]) -> Rehearsed:
    """Rehearse a valid run on this machine, and keep the answer as evidence for it.

    Raises:
        ConfigErrors: It cannot be rehearsed so.
        SubmitError: The folder of rehearsals cannot be written.
        JobFailed: The rehearsal failed, or took too long.
    """
    spec = assessment.spec
    if assessment.estimate is None:
        raise AssertionError("a rehearsal of a run that is not valid")
    try:
        folder = kept.new_folder(spec)
        place = Stage(device=device.here(), folder=folder, say=told_to)
        rehearsal = rehearse(spec, assessment.estimate, request, place)
        kept.keep(folder, rehearsal)
        if not rehearsal.stands_in:
            kept.keep_as_evidence(spec, rehearsal)
    except OSError as error:
        where = getattr(error, "filename", None) or "the folder of rehearsals"
        raise SubmitError(f"{where} cannot be written: {unreadable(error)}") from None
    return answer(assessment, rehearsal)


def answer(assessment: Assessment, rehearsal: Any) -> Rehearsed:
    """The answer with the run as it is judged beside it."""
    evidence = assessment.rehearsed if rehearsal.stands_in else rehearsal.evidence
    return Rehearsed(rehearsal=rehearsal, assessment=replace(assessment, rehearsed=evidence))


def told(options: argparse.Namespace, found: Rehearsed) -> int:
    """Print the answer; the exit status."""
    if options.json:
        print_json(found.as_dict())
    else:
        print(found.as_text(width()))
    sys.stdout.flush()
    return DoesNotFit.exit_status if found.verdict == "does_not_fit" or found.rehearsal.worst.ran_out else 0
