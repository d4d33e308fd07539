"""The options of a measurement, declared and checked without the rooms that start runs, which few plans need."""

from __future__ import annotations

import argparse

from launcher.commands._common import add_trust
from launcher.errors import ConfigError, ConfigErrors
from launcher.planner import shortlist


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--measure", type=int, metavar="N", help="start the N best layouts as short runs")
    words = f"--measure: steps of each run ({shortlist.STEPS})"
    parser.add_argument("--steps", type=int, metavar="N", help=words)
    parser.add_argument("--yes", action="store_true", help="--measure: do not ask about the GPU-hours")
    parser.add_argument(
        "--dry-run", action="store_true", help="--measure: show what would be started, and start nothing"
    )
    words = "rank the layouts that --measure has started, and write the fastest as a recipe"
    parser.add_argument("--results", metavar="ID", help=words)
    parser.add_argument("--save", metavar="NAME", help="--results: the recipe's name")
    add_trust(parser)


def require_whole(options: argparse.Namespace) -> None:
    """Refuse options that only a measurement reads.

    Raises:
        ConfigErrors: They stand alone.
    """
    alone = {"--steps": options.steps is not None, "--yes": options.yes, "--dry-run": options.dry_run}
    rule = "it belongs to --measure, which starts runs"
    errors = [ConfigError(name, None, rule, [f"--measure 3 {name}"]) for name, given in alone.items() if given]
    if errors and options.measure is None:
        raise ConfigErrors(errors)
