"""Search the layouts that a run's words leave open: the fastest of those that fit, with the words that choose each.

What is typed is fixed, what is left open is searched. Needs no GPU, no torch, no Slurm and no network. Exit status: 0
there are layouts that fit, 2 the configuration is wrong, 3 nothing fits.
"""

from __future__ import annotations

import argparse

from launcher.commands import _plan_measurements
from launcher.commands._common import add_measured, add_overrides, measured
from launcher.planner.judge import Preflight
from launcher.planner.planning import plan
from launcher.planner.question import ask

_NOTHING_FITS = 3


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_overrides(parser)
    parser.add_argument("--vary", choices=("precision",), action="append", default=[], help="search its options, too")
    add_measured(parser)
    _plan_measurements.arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Answer one question."""
    if options.measurements or options.forget is not None:
        return _plan_measurements.run(options)
    question = ask(options.overrides, vary=options.vary)
    own = measured(options, question.openings[0].spec.cluster) if question.openings else None
    found = plan(question, judge=Preflight(own))
    for layout in found.layouts:
        print(" ".join(layout.overrides))
    return 0 if found.layouts else _NOTHING_FITS
