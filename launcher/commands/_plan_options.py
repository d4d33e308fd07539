"""The options of a measurement, declared and checked without the rooms that start runs, which few plans need."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.commands._options import add_shared
from launcher.planner import largest, shortlist

OF_A_SEARCH = ("vary", "unmeasured", "lines", "plot", "smallest", "largest", "tokens", "days", "price")
"""Options that only a search reads, beside those of :func:`given` itself."""


def add_questions(parser: argparse.ArgumentParser) -> None:
    """Options of the questions beside the layouts."""
    words = "the fewest GPUs that train it, or that do within --days; a size that is typed is the limit"
    parser.add_argument("--smallest", action="store_true", help=words)
    words = "the largest micro-batch, sequence or model preset that fits here"
    parser.add_argument("--largest", choices=tuple(largest.KEYS), help=words)
    words = "tokens of the training, 1T or 500B, short for train.tokens: what each layout takes for them"
    parser.add_argument("--tokens", metavar="N", help=words)
    parser.add_argument("--days", type=float, metavar="D", help="the limit on the time of the whole training")
    words = "money of a GPU-hour, short for cluster.price_per_gpu_hour"
    parser.add_argument("--price", type=float, metavar="P", help=words)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--measure", type=int, metavar="N", help="start the N best layouts as short runs")
    words = f"--measure: steps of each run ({shortlist.STEPS})"
    parser.add_argument("--steps", type=int, metavar="N", help=words)
    parser.add_argument("--yes", action="store_true", help="--measure: do not ask about the GPU-hours")
    words = "--measure: show what would be started, and start nothing"
    parser.add_argument("--dry-run", action="store_true", help=words)
    words = "write the first layout as the recipe NAME; --results: the fastest"
    parser.add_argument("--save", metavar="NAME", help=words)
    words = "rank the layouts that --measure has started, and write the fastest as a recipe"
    parser.add_argument("--results", metavar="ID", help=words)
    add_shared(parser, "--trust")


_OF_A_MEASUREMENT = ("save", "measure", "steps", "yes", "dry_run", "results", "trust")
"""Options beside those of a search that a listing of measured runs would drop."""


def require_listing_alone(options: argparse.Namespace) -> None:
    """Refuse (ConfigErrors) options of a search beside ``--measurements`` and ``--forget``, which search nothing."""
    flag = "--measurements" if options.forget is None else "--forget"
    beside = () if options.forget is None else ("measurements",)
    typed = given(options, (*OF_A_SEARCH, *_OF_A_MEASUREMENT, *beside))
    if typed:
        rule = f"{flag} searches nothing, and does not read it"
        raise ConfigErrors(ConfigError(each, None, rule) for each in typed)


def given(options: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """The flags that are typed, of these options and of those that switch a part of a search off."""
    values = {f"--{name.replace('_', '-')}": getattr(options, name) for name in names}
    typed = [flag for flag, value in values.items() if value is not None and value is not False and value != []]
    off = {"--no-measurements": options.measured, "--no-native": options.native}
    return [*typed, *(flag for flag, is_on in off.items() if not is_on)]


def require_whole(options: argparse.Namespace) -> None:
    """Refuse (ConfigErrors) options that nothing would read beside the others."""
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
