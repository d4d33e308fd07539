"""Search the layouts that a run's words leave open: the fastest of those that fit, with the words that choose each.

What is typed is fixed, what is left open is searched: the engine, the parallel degrees, what is sharded, the
micro-batch, recomputation, offloading. A key may have several values, parallel.tensor=1,2,4, and then one of them is
taken. Needs no GPU, no torch, no Slurm and no network.

Exit status: 0 there are layouts that fit, 2 the configuration is wrong, 3 nothing fits, or not within --days, 130
interrupted, with the best found so far.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from textwrap import wrap

from launcher.base.errors import INTERRUPTED, DoesNotFit
from launcher.base.units import rounded
from launcher.commands import _plan_native, _plan_options, _plan_plot, _plan_progress, _plan_questions, _plan_save
from launcher.commands._common import add_measured, add_native, add_overrides, measured, print_json, say, width
from launcher.commands._plan_questions import Answer
from launcher.planner import document, planning, table
from launcher.planner.judge import Judge, Preflight
from launcher.planner.question import Question
from launcher.planner.result import Plan
from launcher.preflight.measured.known import Measured

_WIDEST = 120

_WORTH_SAYING_S = 1.0
"""Seconds behind the answer from which on the time of the whole command is said, too."""

_clock = time.monotonic


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_overrides(parser)
    parser.add_argument("--vary", choices=("precision",), action="append", default=[], help="search its options, too")
    _plan_options.arguments(parser)
    _plan_questions.arguments(parser)
    parser.add_argument("--lines", action="store_true", help="the line to paste of each layout, below it")
    words = "draw speed against memory, by a search for each fifth of the card; FILE ends in .png, .svg or .html"
    parser.add_argument("--plot", type=Path, metavar="FILE", help=words)
    add_measured(parser)
    parser.add_argument("--measurements", action="store_true", help="show the measured runs, and the constants of them")
    words = "take a run out of the measured ones, by its name or directory"
    parser.add_argument("--forget", metavar="RUN", help=words)
    _plan_save.add_save(parser)
    add_native(parser)


def run(options: argparse.Namespace) -> int:
    """Answer one question."""
    if options.measurements or options.forget is not None:
        from launcher.commands import _plan_measurements

        return _plan_measurements.run(options)
    _plan_options.require_whole(options)
    if options.results is not None:
        from launcher.commands import _plan_results  # Late, as all that starts runs or reads them.

        return _plan_results.show(options)
    answer = _told(options)
    question, found = answer.question, answer.plan
    measures = options.measure is not None and found.finished and bool(found.layouts) and answer.is_enough
    status = 0 if measures and options.json else _ended(options, answer)
    if options.plot is not None and found.finished and found.layouts:
        _plan_plot.draw(options.plot, question, found, _own(options, question))
    if not measures:
        return status
    from launcher.commands import _plan_measure

    return _plan_measure.measure(options, question, found)


def _told(options: argparse.Namespace) -> Answer:
    """The answer, printed before the engines' own validators are asked and again where they refuse a part of it."""
    began = _clock()
    early = answered(options)
    if not options.json:
        _print(options, early)
    answer = _sound(options, early)
    seconds = _clock() - began
    whole = replace(answer, plan=replace(answer.plan, seconds=seconds))
    if answer is not early and not options.json:
        print("\nagain, without what the engines' own validators refuse:\n")
        _print(options, whole)
    elif not options.json and (asked := seconds - early.plan.seconds) >= _WORTH_SAYING_S:
        own = f"{rounded(asked, 2)} s of them for the engines' own validators (--no-native leaves them out)"
        say(f"launch: {rounded(seconds, 2)} s in all, {own}")
    return whole


def answered(options: argparse.Namespace, *, quiet: bool = False) -> Answer:
    """The question of a command line, and its answer with the seconds that all of it took.

    Args:
        options: Those of the verb.
        quiet: True shows no progress, and leaves Ctrl-C to the caller.

    Raises:
        ConfigErrors: The words are wrong, or the figure of ``--plot`` cannot be made.
        SubmitError: The name of ``--save`` is taken.
    """
    began = _clock()
    _plan_save.require_free(options)
    question = _plan_questions.read(options)
    if options.plot is not None:
        _plan_plot.require(options.plot, question)
    if options.measure is not None:
        from launcher.commands import _plan_measure

        _plan_measure.require(options, question)
    judge = Preflight(_own(options, question))
    search = _quietly if quiet else _plan_progress.planned
    found = _plan_questions.answer(options, question, judge, search)
    plan = replace(found.plan, seconds=_clock() - began)
    return replace(found, plan=plan, asked=question, judge=judge)


def _sound(options: argparse.Namespace, answer: Answer) -> Answer:
    """The answer with layouts that the engines' own validators take; what these refuse is said, and searched past.

    Raises:
        ConfigErrors: They refuse whatever is found.
    """
    question, judge = answer.asked, answer.judge
    if not options.native or not answer.plan.finished or not answer.plan.layouts or question is None or judge is None:
        return answer

    def again() -> Answer:
        found = _plan_questions.answer(options, question, judge, _plan_progress.planned)
        return replace(found, asked=question, judge=judge)

    return _plan_native.sound(answer, lambda each: each.plan, judge, again)


def _quietly(question: Question, judge: Judge) -> Plan:
    return planning.plan(question, judge=judge)


def _own(options: argparse.Namespace, question: Question) -> Measured | None:
    """The measured runs of the user or of the cluster; None where the shipped constants are wanted."""
    return measured(options, question.openings[0].spec.cluster) if question.openings else None


def _print(options: argparse.Namespace, answer: Answer) -> None:
    columns, found = width(_WIDEST), answer.plan
    said = [line for sentence in answer.said for line in wrap(sentence, columns, break_on_hyphens=False)]
    print("\n".join([*said, *([""] if said and found.layouts else [])]), end="\n" if said else "")
    if found.layouts or not said:
        print(table.text(found, columns, lines=options.lines), flush=True)


def _ended(options: argparse.Namespace, answer: Answer) -> int:
    """Save what is to be saved, and print the document; the exit status."""
    found = answer.plan
    saved = _plan_save.save(options, answer.question, found)
    if options.json:
        whole = document.as_dict(found)
        recipe = {} if saved is None else {"recipe": saved}
        print_json({**whole, "plan": {**whole["plan"], **answer.keys}, **recipe})
    if not found.finished:
        return INTERRUPTED
    return 0 if answer.is_enough else DoesNotFit.exit_status
