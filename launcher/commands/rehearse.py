"""Measure one rank of a run, alone on one device, before the run is started.

The real worker runs as rank R of the run's ranks with real tensors and kernels, on this machine's one GPU, or on its
processor what fits it; a process group of its own answers for the other ranks. By default it is the rank that needs the
most. Where the whole model is too much, models of two depths are built and the rest is extrapolated. With cluster=slurm
it is a job of one GPU and a few minutes, whose answer is shown when it is asked again, or with --results RUN.

Exit status: 0 it was measured, and fits or nothing was decided, 2 the words are wrong, 3 it does not fit, 4 the
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
    parser.add_argument("--stage", type=int, metavar="K", help="a rank of this pipeline stage, from 0")
    parser.add_argument("--rank", type=int, metavar="R", help="this rank of the run, from 0")
    parser.add_argument("--all-stages", action="store_true", help="a rank of every stage that holds something else")
    words = f"training steps ({STEPS}): the memory of the first two is followed, the rest are timed"
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=words)
    words = "build models of these layers, and not what the device can hold: one depth, or two to extrapolate from"
    parser.add_argument("--layers", metavar="N[,M]", help=words)
    words = f"the limit on all of it ({MINUTES})"
    parser.add_argument("--minutes", type=float, default=MINUTES, metavar="M", help=words)
    words = "the answer of a rehearsal that was submitted, by its run's name, directory or job id"
    parser.add_argument("--results", metavar="RUN", help=words)
    parser.add_argument("--again", action="store_true", help="submit it again although it has an answer, or waits")
    add_shared(parser, "--hf", "--partial", "--no-native", "--no-measurements", "--trust")


def run(options: argparse.Namespace) -> int:
    """Rehearse here, or submit it, or show the answer of one that was submitted."""
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
