"""Judge a run without starting it: validity, memory by pile and phase, verdict, fixes.

Needs no GPU, no torch, no Slurm and no network. Exit status: 0 it fits, 2 the configuration is wrong, 3 it does not
fit. With --points: 0 when at least one point is valid and fits, else 3 (all unfit) or 2 (all invalid).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from launcher import preflight, trace
from launcher.check_report import as_json, as_text, invalid_as_json
from launcher.commands import points
from launcher.commands.common import add_native, add_overrides, asked, assessed, print_json, say, width
from launcher.errors import ConfigError, ConfigErrors

_STATUS = {"fits": 0, "tight": 0, "does_not_fit": 3, "invalid": 2}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_overrides(parser)
    parser.add_argument("-m", "--multirun", action="store_true", help="judge every point of a sweep")
    add_native(parser)
    parser.add_argument("--points", type=Path, metavar="FILE.jsonl", help='one {"id", "overrides"} a line')
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the piles into FILE.png, .svg or .html")
    parser.add_argument("--hf", type=Path, metavar="FILE", help="take the model from a Hugging Face config.json")
    parser.add_argument("--deepspeed", type=Path, metavar="FILE", help="take the settings of a ds_config.json")
    parser.add_argument("--megatron-args", type=Path, metavar="FILE", help="take a Megatron-LM argument list")
    parser.add_argument(
        "--engine", choices=("formula", "trace"), default="formula", help="where the memory comes from (trace: seconds)"
    )


def run(options: argparse.Namespace) -> int:
    """Check one run, or many."""
    if options.multirun:
        from launcher.commands import sweeping

        return sweeping.check(options)
    if options.plot is not None:
        _check_plot(options)
    if options.points is not None:
        if options.engine == "trace":
            rule = "--points takes the formulas: a trace takes seconds for each point"
            raise ConfigErrors([ConfigError("--engine", "trace", rule, ["--engine formula"])])
        return _points(options.points)
    options.overrides = [*_imported(options), *options.overrides]
    found = asked(options)
    if found.spec is None and options.json:
        print_json(invalid_as_json(found.errors))
        return _STATUS["invalid"]
    assessment = assessed(found, trace.traced if options.engine == "trace" else None, native=options.native)
    if options.json:
        print_json(as_json(assessment))
    else:
        print(as_text(assessment, width()))
    if options.plot is not None and assessment.estimate is not None:
        from launcher import plotting

        plotting.write(options.plot, assessment, preflight.broken_down(assessment.spec, assessment.estimate))
        say(f"launch: the figure is in {options.plot}")
    return _STATUS[assessment.verdict.name]


def _check_plot(options: argparse.Namespace) -> None:
    """Refuse a figure that cannot be made before anything is printed."""
    from launcher import plotting

    if options.points is not None:
        rule = "a figure shows one run, and --points are many: draw one of them by its overrides"
        raise ConfigErrors([ConfigError("--plot", str(options.plot), rule)])
    plotting.check_path(options.plot)


def _imported(options: argparse.Namespace) -> list[str]:
    from launcher.commands.import_ import read, report_not_understood

    texts: list[str] = []
    for kind, path in (("hf", options.hf), ("deepspeed", options.deepspeed), ("megatron", options.megatron_args)):
        if path is not None:
            imported = read(kind, path)
            report_not_understood(imported)
            texts += imported.overrides
    return texts


def _points(path: Path) -> int:
    statuses = set()
    for verdict, answer in points.answers(path):
        statuses.add(_STATUS[verdict])
        print(answer)
    return min(statuses, key=(0, 3, 2).index, default=0)
