"""Check a run without starting it: validity, memory by pile and phase, verdict, fixes.

Needs no GPU, no torch, no Slurm and no network. Exit status: 0 it fits, or the model that it builds is unknown, 2 the
configuration is wrong, 3 it does not fit. With -m or --points: 0 if at least one point is valid and not refused,
else 3 (none fits) or 2 (all invalid).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.actions.check import CheckRequest, check_run, files_of
from launcher.actions.requests import draw_figure, own_measurements
from launcher.actions.trust_gate import may_preview, require_trust
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.base.terminal import width
from launcher.commands._options import add_shared, print_json, request_from, require_one_run
from launcher.estimate.memory.terms import PILES
from launcher.preflight.measured.known import Measured
from launcher.preflight.verdict import VerdictName
from launcher.views.check import Check

if TYPE_CHECKING:
    from launcher.data.encoding import Preview
    from launcher.preflight.explain import Explanation

_STATUS: dict[VerdictName, int] = {"fits": 0, "tight": 0, "unknown": 0, "does_not_fit": 3, "invalid": 2}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_shared(parser, "overrides", "--json")
    parser.add_argument("-m", "--multirun", action="store_true", help="check every point of a sweep")
    add_shared(parser, "--no-native")
    words = 'check many runs, from stdin with -: one {"id", "overrides"} per line; fixes are single changes'
    parser.add_argument("--points", type=Path, metavar="FILE.jsonl", help=words)
    add_shared(parser, "--hf")
    parser.add_argument("--deepspeed", type=Path, metavar="FILE", help="take the settings from a ds_config.json")
    words = "take the settings from a Megatron-LM argument list"
    parser.add_argument("--megatron-args", type=Path, metavar="FILE", help=words)
    add_shared(parser, "--partial", "--set", "--trust")
    words = "explain a pile: its terms with symbols, numbers, bytes, moments, sources, and the error band's origin"
    parser.add_argument("--explain", choices=PILES, metavar="PILE", help=f"{words} ({', '.join(PILES)})")
    parser.add_argument("--speed", action="store_true", help="the parts of a step, with formulas, numbers and sources")
    add_shared(parser, "--engine", "--plot", "--no-measurements", "--anchor")


def run(options: argparse.Namespace) -> int:
    """Check one run, or many."""
    several = "--points" if options.points is not None else "-m" if options.multirun else None
    require_one_run(options, several)
    if options.points is not None:
        _require_nothing_beside_points(options)
        return _check_points(options.points, own_measurements(wanted=options.measured))
    if options.multirun:
        return _check_sweep(options)
    request = request_from(CheckRequest, options)
    foreign = files_of(request)
    sources = [file.source(request.typed) for file in foreign]
    found = check_run(request, foreign)
    if found.assessment is None and not options.json:
        raise ConfigErrors(found.errors)
    explanation = None if options.explain is None or found.peak is None else found.explain(options.explain)
    spec = None if found.errors else found.spec
    samples: Sequence[Preview] = ()
    if spec is not None and spec.data.preview and may_preview(request.command_line(), spec, sources):
        from launcher.actions import run_data  # Imported late: few checks show samples.

        samples = run_data.read_previews(spec)
    if options.json:
        document = run_data.with_previews(found.as_dict(), samples) if samples else found.as_dict()
        print_json(document | _detail_keys(document, options, found, explanation))
    elif explanation is not None or (options.speed and found.speed is not None):
        print(_detail_text(options, found, explanation))
    else:
        print(found.as_text(width()))
        if options.speed and found.spec is not None and found.peak is not None and found.spec.hardware.device == "cpu":
            print(f"\n{found.speed_table(width())}")  # On other devices the answer itself has the reason.
        if samples:
            run_data.show_previews(samples)
    if found.assessment is not None:
        draw_figure(options.plot, found.assessment)
    return _STATUS[found.verdict]


def _check_sweep(options: argparse.Namespace) -> int:
    from launcher.actions import sweep
    from launcher.views import runs

    request = request_from(sweep.SweepRequest, options)
    if request.trust:
        require_trust(request.command_line(), trusted=True)
    points = sweep.judge_points(request)
    if options.json:
        print_json({"schema": 1, "points": [point.as_dict() for point in points]})
    else:
        print(runs.judged(points, width()))
    return sweep.status_of(points)


def _detail_text(options: argparse.Namespace, found: Check, explanation: "Explanation | None") -> str:
    from launcher.views.check import detail  # Imported late: few checks need it.

    texts = [] if explanation is None else [detail.explanation_text(explanation, width())]
    return "\n\n".join([*texts, found.speed_table(width())] if options.speed else texts)


def _detail_keys(
    document: JsonObject, options: argparse.Namespace, found: Check, explanation: "Explanation | None"
) -> JsonObject:
    explained = {} if explanation is None else {"explain": explanation.as_dict()}
    if not options.speed or found.speed is None:
        return explained
    from launcher.views.check import detail

    return explained | {"speed": document["speed"] | detail.speed_document(found.speed)}


def _require_nothing_beside_points(options: argparse.Namespace) -> None:
    given = (("-m", options.multirun), ("--trust", options.trust), ("--partial", options.partial))
    found = " ".join([*[flag for flag, is_given in given if is_given], *options.overrides])
    if found:
        rule = "each point of --points holds all of its overrides: write it into the points' lines"
        raise ConfigErrors([ConfigError("OVERRIDE", found, rule)])


def _check_points(path: Path, own: Measured | None) -> int:
    from launcher.actions import points  # Imported late: a single run needs none of its processes.

    statuses = set()
    for verdict, answer in points.answers(path, own):
        statuses.add(_STATUS[verdict])
        print(answer, flush=True)
    if not statuses:
        rule = 'the file holds no point: each is a line {"id": ..., "overrides": ["group=option", ...]}'
        raise ConfigErrors([ConfigError("--points", str(path), rule)])
    return min(statuses, key=(0, 3, 2).index)
