"""Search the layouts that a run's words leave open: the fastest of those that fit, with the words that choose each.

What is typed is fixed, what is left open is searched: the engine, the parallel degrees, what is sharded, the
micro-batch, recomputation, offloading. A key may have several values, parallel.tensor=1,2,4, and then one of them is
taken. Needs no GPU, no torch, no Slurm and no network.

Exit status: 0 there are layouts that fit, 2 the configuration is wrong, 3 nothing fits, 130 interrupted, with the best
found so far.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from launcher.commands import _plan_plot, _plan_progress, _plan_save
from launcher.commands._common import add_measured, add_overrides, measured, print_json, width
from launcher.errors import INTERRUPTED, DoesNotFit
from launcher.measurements.known import Measured
from launcher.planner import document, planning, table
from launcher.planner.judge import Preflight
from launcher.planner.question import Question, ask
from launcher.planner.result import Plan
from launcher.planner.validity import require_valid

_WIDEST = 120


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_overrides(parser)
    parser.add_argument("--vary", choices=("precision",), action="append", default=[], help="search its options, too")
    parser.add_argument("--lines", action="store_true", help="the line to paste of each layout, below it")
    words = "draw speed against memory, by a search for each fifth of the card; FILE ends in .png, .svg or .html"
    parser.add_argument("--plot", type=Path, metavar="FILE", help=words)
    add_measured(parser)
    parser.add_argument("--measurements", action="store_true", help="show the measured runs, and the constants of them")
    words = "take a run out of the measured ones, by its name or directory"
    parser.add_argument("--forget", metavar="RUN", help=words)
    _plan_save.add_save(parser)


def run(options: argparse.Namespace) -> int:
    """Answer one question."""
    if options.measurements or options.forget is not None:
        from launcher.commands import _plan_measurements

        return _plan_measurements.run(options)
    question, found = answered(options)
    status = _shown(options, question, found)
    if options.plot is not None and found.finished and found.layouts:
        _plan_plot.draw(options.plot, question, found, _own(options, question))
    return status


def answered(options: argparse.Namespace, *, quiet: bool = False) -> tuple[Question, Plan]:
    """The question of a command line, and its answer.

    Args:
        options: Those of the verb.
        quiet: True shows no progress, and leaves Ctrl-C to the caller.

    Raises:
        ConfigErrors: The words are wrong, or the figure of ``--plot`` cannot be made.
        SubmitError: The name of ``--save`` is taken.
    """
    _plan_save.require_free(options)
    question = ask(options.overrides, vary=options.vary)
    if options.plot is not None:
        _plan_plot.require(options.plot, question)
    judge = Preflight(_own(options, question))
    found = planning.plan(question, judge=judge) if quiet else _plan_progress.planned(question, judge)
    require_valid(question, found)
    return question, found


def _own(options: argparse.Namespace, question: Question) -> Measured | None:
    """The measured runs of the user or of the cluster; None where the shipped constants are wanted."""
    return measured(options, question.openings[0].spec.cluster) if question.openings else None


def _shown(options: argparse.Namespace, question: Question, found: Plan) -> int:
    """Print the answer, and save what is to be saved; the exit status."""
    if options.json:
        saved = _plan_save.save(options, question, found)
        print_json(document.as_dict(found) | ({} if saved is None else {"recipe": saved}))
    else:
        print(table.text(found, width(_WIDEST), lines=options.lines))
        _plan_save.save(options, question, found)
    if not found.finished:
        return INTERRUPTED
    return 0 if found.layouts else DoesNotFit.exit_status
