"""Compare runs: the settings that differ, the loss at equal steps and at equal tokens, speed and memory.

A sweep's name stands for its runs. Runs of any kind and state are compared by the data that they have.
"""

import argparse
from functools import partial
from pathlib import Path

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.terminal import say, width
from launcher.commands._options import add_shared, named_runs, print_answer
from launcher.rundir import run_names, status


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_shared(parser, "runs")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot the losses; FILE ends in .png, .svg or .html")
    add_shared(parser, "--json")


def run(options: argparse.Namespace) -> int:
    """Print the comparison."""
    from launcher.views import comparison, comparison_text

    if options.plot is not None:
        from launcher.charts.page import check_path

        check_path(options.plot)
    directories = list(dict.fromkeys(named_runs(options).runs)) if options.runs else []
    if len(directories) < 2:
        rule = "a comparison needs at least two runs"
        raise ConfigErrors([ConfigError("RUN", " ".join(options.runs) or None, rule, ["launch status"])])
    for directory in directories:
        if (damage := status.damage(directory)) is not None:
            say(f"launch: {run_names.id_of(directory)} is incomplete: {damage}")
    found = comparison.compare(directories)
    if options.plot is not None:
        from launcher.views.page import many  # Imported late: few comparisons are plotted.

        many.write(options.plot, found)
        say(f"launch: the figure is in {options.plot}")
    text = partial(comparison_text.text, found, width())
    print_answer(options, lambda: {"schema": 1, "compare": found.as_dict()}, text)
    return 0
