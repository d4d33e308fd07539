"""Search the layouts that a run's words leave open: the fastest of those that fit, with the words that choose each.

What is typed is fixed, what is left open is searched. Needs no GPU, no torch, no Slurm and no network. Exit status: 0
there are layouts that fit, 2 the configuration is wrong, 3 nothing fits.
"""

from __future__ import annotations

import argparse

from launcher.commands import _plan_options
from launcher.commands._common import add_overrides
from launcher.planner.planning import plan
from launcher.planner.question import ask

_NOTHING_FITS = 3


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_overrides(parser)
    parser.add_argument("--vary", choices=("precision",), action="append", default=[], help="search its options, too")
    _plan_options.arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Answer one question."""
    _plan_options.require_whole(options)
    if options.results is not None:
        from launcher.commands import _plan_results  # Late, as all that starts runs or reads them.

        return _plan_results.show(options)
    question = ask(options.overrides, vary=options.vary)
    if options.measure is not None:
        from launcher.commands import _plan_measure

        _plan_measure.require(options, question)
    found = plan(question)
    if options.measure is not None and found.layouts:
        return _plan_measure.measure(options, question, found)
    for layout in found.layouts:
        print(" ".join(layout.overrides))
    return 0 if found.layouts else _NOTHING_FITS
