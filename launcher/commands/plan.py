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

from launcher.commands import _plan_plot, _plan_progress
from launcher.commands._common import add_overrides, print_json, width
from launcher.errors import INTERRUPTED, DoesNotFit
from launcher.planner import document, table
from launcher.planner.question import ask
from launcher.planner.result import Plan

_WIDEST = 120


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_overrides(parser)
    parser.add_argument("--vary", choices=("precision",), action="append", default=[], help="search its options, too")
    parser.add_argument("--lines", action="store_true", help="the line to paste of each layout, below it")
    words = "draw speed against memory, by a search for each tenth of the card; FILE ends in .png, .svg or .html"
    parser.add_argument("--plot", type=Path, metavar="FILE", help=words)


def run(options: argparse.Namespace) -> int:
    """Answer one question."""
    question = ask(options.overrides, vary=options.vary)
    if options.plot is not None:
        _plan_plot.require(options.plot, question)
    found = _plan_progress.planned(question)
    status = _shown(options, found)
    if options.plot is not None and found.finished and found.layouts:
        _plan_plot.draw(options.plot, question, found)
    return status


def _shown(options: argparse.Namespace, found: Plan) -> int:
    """Print the answer; the exit status."""
    if options.json:
        print_json(document.as_dict(found))
    else:
        print(table.text(found, width(_WIDEST), lines=options.lines))
    if not found.finished:
        return INTERRUPTED
    return 0 if found.layouts else DoesNotFit.exit_status
