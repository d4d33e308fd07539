"""The options of a measurement, declared and checked without the rooms that start runs, which few plans need."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.commands._common import add_trust
from launcher.planner import shortlist

OF_A_SEARCH = ("vary", "lines", "plot", "smallest", "largest", "tokens", "days", "price")
"""Options that only a search reads, beside those of :func:`given` itself."""


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
    add_trust(parser)


def given(options: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """The flags that are typed, of these options and of those that switch a part of a search off."""
    values = {f"--{name.replace('_', '-')}": getattr(options, name) for name in names}
    typed = [flag for flag, value in values.items() if value is not None and value is not False and value != []]
    off = {"--no-measurements": options.measured, "--no-native": options.native}
    return [*typed, *(flag for flag, is_on in off.items() if not is_on)]


def require_whole(options: argparse.Namespace) -> None:
    """Refuse options that nothing would read beside the others.

    Raises:
        ConfigErrors: There are some.
    """
    of_measure = {"--steps": options.steps is not None, "--yes": options.yes, "--dry-run": options.dry_run}
    errors = [
        ConfigError(name, None, "it belongs to --measure, which starts runs", [f"--measure 3 {name}"])
        for name, given in of_measure.items()
        if given and options.measure is None
    ]
    if options.save is not None and options.measure is not None:
        rule = "the fastest layout is known when its runs have ended: --results writes its recipe"
        errors.append(ConfigError("--save", options.save, rule, [f"--results ID --save {options.save}"]))
    if options.results is not None:
        rule = "--results reads a measurement, which remembers its question"
        typed = [*(["OVERRIDES"] if options.overrides else []), *given(options, ("measure", *OF_A_SEARCH))]
        errors += [ConfigError(name, None, rule, ["launch plan --results ID"]) for name in typed]
    if errors:
        raise ConfigErrors(errors)
