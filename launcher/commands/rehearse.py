"""Measure one rank of a run alone on one device, before the run is started.

The real worker runs as rank R of the run with real tensors and kernels, on one GPU of this machine, or on its CPU if it
fits there; a simulated process group stands in for the other ranks. By default it is the rank that needs the most
memory. If the whole model is too large, models of two depths are built and the rest is extrapolated. With cluster=slurm
it is a job of one GPU and a few minutes; the same command, or --results RUN, shows its answer.

Exit status: 0 it was measured, and fits or is undecided, 2 the configuration is wrong, 3 it does not fit, 4 the
submission failed, 5 the rehearsal itself failed.
"""

import argparse

from launcher.actions.rehearse import RehearseRequest, judge_rehearsed, question_of, rehearse_here
from launcher.actions.requests import Output
from launcher.base.errors import DoesNotFit
from launcher.base.terminal import say, width
from launcher.commands._options import add_shared, print_answer, print_output, request_from
from launcher.rehearsing.choice import MINUTES, STEPS
from launcher.views.rehearsal import Rehearsed


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_shared(parser, "overrides", "--json")
    parser.add_argument("--stage", type=int, metavar="K", help="measure a rank of this pipeline stage, from 0")
    parser.add_argument("--rank", type=int, metavar="R", help="measure this rank of the run, from 0")
    parser.add_argument("--all-stages", action="store_true", help="measure a rank of every stage that differs")
    words = f"training steps ({STEPS}): memory is recorded in the first two, the others are timed"
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=words)
    words = "build models of this many layers, instead of as many as fit: one depth, or two to extrapolate from"
    parser.add_argument("--layers", metavar="N[,M]", help=words)
    words = f"limit on the total time ({MINUTES})"
    parser.add_argument("--minutes", type=float, default=MINUTES, metavar="M", help=words)
    words = "show the answer of a submitted rehearsal, given by its run's name, directory or job id"
    parser.add_argument("--results", metavar="RUN", help=words)
    parser.add_argument("--again", action="store_true", help="submit it again even if it has an answer or is queued")
    add_shared(parser, "--hf", "--partial", "--no-native", "--no-measurements", "--trust")


def run(options: argparse.Namespace) -> int:
    """Rehearse here, or submit the rehearsal, or show the answer of one that was submitted."""
    found = _found(options)
    if isinstance(found, Output):
        return print_output(found, as_json=options.json)
    print_answer(options, found.as_dict, lambda: found.as_text(width()))
    return DoesNotFit.exit_status if found.verdict == "does_not_fit" or found.rehearsal.worst.ran_out else 0


def _found(options: argparse.Namespace) -> Rehearsed | Output:
    if options.results is not None:
        from launcher.actions import rehearse

        return rehearse.read_answer(options.results, options.overrides)
    asked = request_from(RehearseRequest, options)
    question, assessment = question_of(asked), judge_rehearsed(asked)
    if assessment.spec.cluster.kind == "slurm":
        from launcher.actions import rehearse

        return rehearse.submit(asked, assessment, question, again=options.again)
    return rehearse_here(assessment, question, say)
