"""Judge a run without starting it: validity, memory by pile and phase, verdict, fixes.

Needs no GPU, no torch, no Slurm and no network. Exit status: 0 it fits, or it is not known what it builds, 2 the
configuration is wrong, 3 it does not fit. With -m or --points: 0 when at least one point is valid and is not refused,
else 3 (all unfit) or 2 (all invalid).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.commands import _points, _preview
from launcher.commands._common import (
    add_engine,
    add_hf,
    add_measured,
    add_native,
    add_overrides,
    add_trust,
    asked,
    assessed,
    draw,
    measured,
    memory_engine,
    print_json,
    require_one_run,
    say,
    take_hf,
    width,
)
from launcher.commands._importing import Foreign, add_partial, add_set, read, take_partial, variables_of
from launcher.commands._trusting import judge, may_preview, python_of, require_for_trace, require_trust
from launcher.commands._waiting import checking
from launcher.estimate.memory.terms import PILES
from launcher.preflight import explain
from launcher.preflight.check import Check
from launcher.preflight.explain import Explanation
from launcher.preflight.measured.known import Measured
from launcher.preflight.verdict import VerdictName

_STATUS: dict[VerdictName, int] = {"fits": 0, "tight": 0, "unknown": 0, "does_not_fit": 3, "invalid": 2}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_overrides(parser)
    parser.add_argument("-m", "--multirun", action="store_true", help="judge every point of a sweep")
    add_native(parser)
    parser.add_argument(
        "--points",
        type=Path,
        metavar="FILE.jsonl",
        help='judge many runs, - from stdin: a line each of {"id", "overrides"}; their ways out are single changes',
    )
    add_hf(parser)
    parser.add_argument("--deepspeed", type=Path, metavar="FILE", help="take the settings of a ds_config.json")
    parser.add_argument(
        "--megatron-args", type=Path, metavar="FILE", help="take the settings of a Megatron-LM argument list"
    )
    add_partial(parser)
    add_set(parser)
    add_trust(parser)
    words = "explain a pile: its terms with symbols, numbers, bytes, moments, source, and where the error band is from"
    parser.add_argument("--explain", choices=PILES, metavar="PILE", help=f"{words} ({', '.join(PILES)})")
    parser.add_argument("--speed", action="store_true", help="the parts of a step, with formulas, numbers and sources")
    add_engine(parser)
    add_measured(parser)


def run(options: argparse.Namespace) -> int:
    """Check one run, or many."""
    several = "--points" if options.points is not None else "-m" if options.multirun else None
    require_one_run(options, several)
    if options.points is not None:
        _require_nothing_beside_points(options)
        return _check_points(options.points, measured(options))
    if options.multirun:
        take_partial(options)
        if options.trust:
            require_trust(options)
        from launcher.commands import _sweeping

        return _sweeping.check(options)
    foreign = files_of(options)
    sources = [file.source(options.overrides) for file in foreign]
    found = checked(options, foreign)
    if found.assessment is None and not options.json:
        raise ConfigErrors(found.errors)
    explanation = _explanation(options, found)
    readable = found.spec is not None and not found.errors and may_preview(options, found.spec, sources)
    samples = _preview.previews(found.spec) if found.spec is not None and readable else []
    if options.json:
        document = _preview.as_json(found.as_dict(), samples)
        print_json(document | _in_detail(document, options, found, explanation))
    elif explanation is not None or (options.speed and found.speed is not None):
        print(_told(options, found, explanation))
    else:
        print(found.as_text(width()))
        if options.speed and found.spec is not None and found.peak is not None and found.spec.hardware.device == "cpu":
            print(f"\n{found.speed_table(width())}")  # Of other devices the answer itself has the reason.
        _preview.show(samples)
    if found.assessment is not None:
        draw(options, found.assessment)
    return _STATUS[found.verdict]


def files_of(options: argparse.Namespace) -> list[Foreign]:
    """The other programs' files that the run takes settings of, their keys counted aloud.

    Raises:
        ConfigErrors: One cannot be read, or a word of ``--set`` is wrong.
    """
    variables = variables_of(options)
    kinds = (("deepspeed", options.deepspeed), ("megatron", options.megatron_args))
    found = []
    for kind, path in ((kind, path) for kind, path in kinds if path is not None):
        foreign = Foreign(kind=kind, path=path, imported=read(kind, path, variables if kind == "megatron" else {}))
        say(f"launch: {path}: {foreign.counted()}; `launch import {kind} {path}` names them")
        found.append(foreign)
    if variables and options.megatron_args is None:
        rule = "it gives the variables of a script, and there is none"
        raise ConfigErrors([ConfigError("--set", " ".join(options.variables), rule, ["--megatron-args train.sh"])])
    return found


def checked(options: argparse.Namespace, foreign: Sequence[Foreign]) -> Check:
    """Judge one run; words that make no run are an answer, too.

    Args:
        options: Those of the verb.
        foreign: The files that it takes settings of.
    """
    take_hf(options)
    typed = list(options.overrides)
    sources = [file.source(typed) for file in foreign]
    refused = [error for file in foreign for error in file.imported.errors]
    if refused:
        return Check(assessment=None, errors=tuple(refused), warnings=())
    take_partial(options)
    options.overrides = [*(text for file in foreign for text in file.words(typed)), *options.overrides]
    if options.trust:
        require_trust(options, sources)
    found = asked(options)
    partial = options.partial or (found.spec is not None and found.spec.run.partial)
    remarks = tuple(remark for file in foreign for remark in file.remarks(typed, partial=partial))
    left_out = () if partial else (error for file in foreign for error in file.refusals(typed))
    found = replace(found, errors=(*left_out, *found.errors))
    if found.spec is None:
        return Check(assessment=None, errors=found.errors, warnings=remarks)
    require_for_trace(options, sources, found.spec)
    python = python_of(options, sources, typed)
    how: dict[str, Any] = {"python": python, "measured": measured(options)}
    with checking(judge(options, sources, typed) if options.native else None) as native:
        return Check.of(assessed(found, memory_engine(options), native=native, **how), warnings=remarks)


def _explanation(options: argparse.Namespace, found: Check) -> Explanation | None:
    """The explanation that was asked for; an invalid run has none."""
    return None if options.explain is None or found.peak is None else found.explain(options.explain)


def _told(options: argparse.Namespace, found: Check, explanation: Explanation | None) -> str:
    """What was asked for in place of the answer: the terms of a pile, the parts of a step, or both."""
    told = [] if explanation is None else [explain.as_text(explanation, width())]
    return "\n\n".join([*told, found.speed_table(width())] if options.speed else told)


def _in_detail(
    document: dict[str, Any], options: argparse.Namespace, found: Check, explanation: Explanation | None
) -> dict[str, Any]:
    """What was asked for beside the answer: the key ``explain``, and the key ``speed`` with its terms."""
    explained = {} if explanation is None else {"explain": explanation.as_dict()}
    if not options.speed or found.speed is None:
        return explained
    from launcher.preflight import speed_table  # Late, because few checks ask for it.

    return explained | {"speed": document["speed"] | speed_table.as_dict(found.speed)}


def _require_nothing_beside_points(options: argparse.Namespace) -> None:
    """Refuse words that no point would take over, which would else be dropped.

    Raises:
        ConfigErrors: There are some.
    """
    given = (("-m", options.multirun), ("--trust", options.trust), ("--partial", options.partial))
    flags = [flag for flag, is_given in given if is_given]
    found = " ".join([*flags, *options.overrides])
    if found:
        rule = "each point of --points holds all of its overrides: write it into their lines"
        raise ConfigErrors([ConfigError("OVERRIDE", found, rule)])


def _check_points(path: Path, own: Measured | None) -> int:
    statuses = set()
    for verdict, answer in _points.answers(path, own):
        statuses.add(_STATUS[verdict])
        print(answer, flush=True)
    if not statuses:
        rule = 'the file holds no point: a line each of {"id": ..., "overrides": ["group=option", ...]}'
        raise ConfigErrors([ConfigError("--points", str(path), rule)])
    return min(statuses, key=(0, 3, 2).index)
