"""Judge a run without starting it: validity, memory by pile and phase, verdict, fixes.

Needs no GPU, no torch, no Slurm and no network. Exit status: 0 it fits, 2 the configuration is wrong, 3 it does not
fit. With -m or --points: 0 when at least one point is valid and fits, else 3 (all unfit) or 2 (all invalid).
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path

from launcher.commands import _points, _preview
from launcher.commands._common import (
    add_engine,
    add_native,
    add_overrides,
    asked,
    assessed,
    draw,
    may_run_code,
    memory_engine,
    print_json,
    require_one_run,
    width,
)
from launcher.errors import ConfigError, ConfigErrors
from launcher.memory.terms import PILES
from launcher.preflight import explain
from launcher.preflight.assess import Assessment
from launcher.preflight.explain import Explanation
from launcher.preflight.report import as_json, as_text, invalid_as_json

_STATUS = {"fits": 0, "tight": 0, "does_not_fit": 3, "invalid": 2}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_overrides(parser)
    parser.add_argument("-m", "--multirun", action="store_true", help="judge every point of a sweep")
    add_native(parser)
    parser.add_argument(
        "--points",
        type=Path,
        metavar="FILE.jsonl",
        help='judge many runs: a line each of {"id", "overrides"}; their ways out are single changes',
    )
    parser.add_argument("--hf", type=Path, metavar="FILE", help="take the model from a Hugging Face config.json")
    parser.add_argument("--deepspeed", type=Path, metavar="FILE", help="take the settings of a ds_config.json")
    parser.add_argument(
        "--megatron-args", type=Path, metavar="FILE", help="take the settings of a Megatron-LM argument list"
    )
    words = "explain one pile: each of its terms with symbols, numbers, bytes, moments and source"
    parser.add_argument("--explain", choices=PILES, metavar="PILE", help=f"{words} ({', '.join(PILES)})")
    add_engine(parser)


def run(options: argparse.Namespace) -> int:
    """Check one run, or many."""
    several = "--points" if options.points is not None else "-m" if options.multirun else None
    require_one_run(options, several)
    if options.points is not None:
        _require_nothing_beside_points(options)
        return _check_points(options.points)
    if options.multirun:
        from launcher.commands import _sweeping

        return _sweeping.check(options)
    texts, unknown = _imported(options)
    options.overrides = [*texts, *options.overrides]
    found = asked(options)
    if found.spec is None and options.json:
        print_json(invalid_as_json(found.errors, unknown))
        return _STATUS["invalid"]
    assessment = assessed(found, memory_engine(options), native=options.native and may_run_code(options))
    assessment = replace(assessment, warnings=(*unknown, *assessment.warnings))
    explanation = _explanation(options, assessment)
    samples = [] if assessment.errors else _preview.previews(assessment.spec)
    if options.json:
        document = _preview.as_json(as_json(assessment), samples)
        print_json(document | ({} if explanation is None else {"explain": explanation.as_dict()}))
    elif explanation is not None:
        print(explain.as_text(explanation, width()))
    else:
        print(as_text(assessment, width()))
        _preview.show(samples)
    draw(options, assessment)
    return _STATUS[assessment.verdict.name]


def _explanation(options: argparse.Namespace, assessment: Assessment) -> Explanation | None:
    """The explanation that was asked for; an invalid run has none."""
    if options.explain is None or assessment.estimate is None:
        return None
    return explain.explained(assessment.spec, options.explain)


def _imported(options: argparse.Namespace) -> tuple[list[str], list[ConfigError]]:
    """Foreign files as overrides, and warnings of their settings that are not understood.

    One that only asks for a key is left out where the user sets that key.
    """
    from launcher.commands.import_ import read

    given = {text.partition("=")[0] for text in options.overrides}
    texts: list[str] = []
    unknown: list[ConfigError] = []
    for kind, path in (("hf", options.hf), ("deepspeed", options.deepspeed), ("megatron", options.megatron_args)):
        if path is not None:
            imported = read(kind, path)
            texts += imported.overrides
            rule = "it is not understood, and not in the estimate"
            items = (item for item in imported.not_understood if not _asks_for(item) & given)
            unknown += [ConfigError(str(path), item, rule) for item in items]
    return texts, unknown


def _asks_for(item: str) -> set[str]:
    """The key that something which is not understood asks for: ``...: set model.vocab_size``."""
    return set(re.findall(r": set ([\w.]+)", item))


def _require_nothing_beside_points(options: argparse.Namespace) -> None:
    """Refuse words that no point would take over, which would else be dropped.

    Raises:
        ConfigErrors: There are some.
    """
    sweep = ["-m"] if options.multirun else []
    found = " ".join([*sweep, *options.overrides])
    if found:
        rule = "each point of --points holds all of its overrides: write it into their lines"
        raise ConfigErrors([ConfigError("OVERRIDE", found, rule)])


def _check_points(path: Path) -> int:
    statuses = set()
    for verdict, answer in _points.answers(path):
        statuses.add(_STATUS[verdict])
        print(answer)
    if not statuses:
        rule = 'the file holds no point: a line each of {"id": ..., "overrides": ["group=option", ...]}'
        raise ConfigErrors([ConfigError("--points", str(path), rule)])
    return min(statuses, key=(0, 3, 2).index)
