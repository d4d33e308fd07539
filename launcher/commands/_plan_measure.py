"""``launch plan --measure N``: the N best layouts as short runs, started once their cost is known and agreed to."""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launcher.base.errors import INTERRUPTED, ConfigError, ConfigErrors
from launcher.base.units import rounded
from launcher.commands import _plan_results, _sweeping
from launcher.commands._common import folder, print_json, say, width
from launcher.commands._trusting import require_trust
from launcher.planner import shortlist
from launcher.planner.question import Question
from launcher.planner.result import Layout, Plan
from launcher.planner.shortlist import Shortlist
from launcher.preflight.this_machine import obstacles
from launcher.rundir.record import directory_for
from launcher.submission.submit import array_text
from launcher.sweeping import measurement
from launcher.sweeping.point import Point
from launcher.sweeping.sweep import Sweep


def require(options: argparse.Namespace, question: Question) -> None:
    """Refuse, before anything is searched, runs that nobody can agree to or that cannot start here.

    Raises:
        ConfigErrors: They are.
    """
    if options.measure < 1:
        raise ConfigErrors([ConfigError("--measure", options.measure, "how many layouts: 1 or more", ["--measure 3"])])
    if options.steps is not None:
        shortlist.require_steps(options.steps)
    require_trust(options)
    if not (options.yes or options.dry_run or _can_ask(options)):
        rule = "GPU-hours are asked about before a run starts, and there is no terminal to ask at"
        raise ConfigErrors([ConfigError("--measure", options.measure, rule, ["--yes", "--dry-run"])])
    errors = [obstacles(opening.spec, question.facts) for opening in question.openings]
    if all(errors):
        raise ConfigErrors(errors[0])


def _can_ask(options: argparse.Namespace) -> bool:
    return not options.json and sys.stdin.isatty() and sys.stderr.isatty()


def measure(options: argparse.Namespace, question: Question, found: Plan) -> int:
    """Start the best layouts of a plan as short runs, or show what would be started."""
    layouts = _startable(question, found.layouts, options.measure)
    chosen = shortlist.shortlist(question, layouts, steps=options.steps or shortlist.STEPS)
    asked = measurement.sweep_of(
        chosen, question=question.words, catalog=question.catalog, facts=question.facts, trusted=options.trust
    )
    tell: Callable[[str], None] = say if options.json else print
    tell(_text(chosen))
    if options.dry_run:
        return _rehearsed(options, chosen, asked)
    if not options.yes and not _agreed():
        say("launch: nothing was started")
        return 0
    directory, points, ended = _sweeping.begun(asked, chosen.overrides, quiet=options.json, kind=measurement.KIND)
    return _closed(options, chosen, directory, points, ended)


def _startable(question: Question, layouts: Sequence[Layout], count: int) -> list[Layout]:
    """The best layouts that can start; what is passed over, and too few of them, is said.

    Raises:
        ConfigErrors: None can.
    """
    chosen: list[Layout] = []
    errors: list[ConfigError] = []
    for layout in layouts:
        lacks = obstacles(layout.spec, question.facts)
        if lacks and len(chosen) < count:
            errors += lacks
            say(_wrapped(f"launch: not measured: {' '.join(layout.overrides)}: {lacks[0].rule}"))
        if not lacks:
            chosen.append(layout)
    if not chosen:
        raise ConfigErrors(errors)
    if len(chosen) < count:
        say(f"launch: {count} layouts were asked for, and there are {len(chosen)}: these are measured")
    return chosen[:count]


def _wrapped(text: str) -> str:
    return textwrap.fill(text, width(), subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)


def _text(chosen: Shortlist) -> str:
    """The runs and what they cost, for a person to agree to."""
    run = chosen.runs[0]
    count, kind = len(chosen.runs), "a Slurm array" if run.cluster.kind == "slurm" else "one after the other, here"
    runs = "1 short run" if count == 1 else f"{count} short runs"
    head = f"{runs} of {chosen.steps} steps on {measurement.machine(run)}, {kind}:"
    lines = ["", head]
    for number, words in enumerate(chosen.overrides):
        text = " ".join(words) or "as the words say"
        lines += textwrap.wrap(text, width(), initial_indent=f"  {number:03d}  ", subsequent_indent=" " * 7)
    if chosen.left_out:
        text = f"left out of these runs, and back in the winner's recipe: {' '.join(chosen.left_out)}"
        lines.append(_wrapped(text))
    lines.append(_wrapped("random tokens, no checkpoint, no evaluation, no tracker"))
    return "\n".join((*lines, _wrapped(cost(chosen))))


def cost(chosen: Shortlist) -> str:
    """The GPU-hours of a shortlist, and its price where one is set, in a sentence."""
    each, hours, most = chosen.price_per_gpu_hour, chosen.gpu_hours, chosen.most_gpu_hours
    unit = "rank-hours" if chosen.runs[0].hardware.device == "cpu" else "GPU-hours"

    def paid(number: float) -> str:
        return "" if each is None else f" (cost {rounded(number * each)})"

    said = f"how many {unit} the steps take is not predicted"
    if hours is not None:
        said = f"the steps take {rounded(hours)} {unit}{paid(hours)} by the estimate, without start-up"
    price = "" if each is None else f", at {each:g} a GPU-hour"
    if chosen.runs[0].cluster.kind != "slurm":
        return f"{said}{price}; no time limit ends a run on this machine, Ctrl-C does"
    limit = f"{chosen.time_limit_min} min for each run"
    return f"{said}; at most {rounded(most)}{paid(most)} by the time limit of {limit}{price}"


def _agreed() -> bool:
    print("start them? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _document(
    chosen: Shortlist, directory: Path | None, rows: Sequence[dict[str, Any]], sbatch: str | None = None
) -> dict[str, Any]:
    each, hours, most = chosen.price_per_gpu_hour, chosen.gpu_hours, chosen.most_gpu_hours
    content = {
        "id": None if directory is None else directory.name,
        "directory": None if directory is None else str(directory),
        "steps": chosen.steps,
        "time_limit_min": chosen.time_limit_min,
        "gpu_hours": hours,
        "most_gpu_hours": most,
        "price": None if each is None or hours is None else hours * each,
        "most_price": None if each is None else most * each,
        "words": list(chosen.words),
        "left_out": list(chosen.left_out),
        "points": list(rows),
        "sbatch": sbatch,
    }
    return {"schema": 1, "measurement": content}


def _rehearsed(options: argparse.Namespace, chosen: Shortlist, asked: Sweep) -> int:
    """Show the runs, each with the line that starts it alone and its verdict, and the text that Slurm would get."""
    points = [asked.point(number, words)[0] for number, words in enumerate(chosen.overrides)]
    _sweeping.say_remarks(asked)
    place = directory_for(asked.settings, measurement.KIND, folder=folder())
    kept = [point for point in points if point.kept]
    sbatch = array_text(place, asked.settings.cluster, len(kept)) if kept else None
    if options.json:
        keys = ("id", "overrides", "verdict", "reason")
        rows = [{key: each.as_dict()[key] for key in keys} for each in points]
        print_json(_document(chosen, None, rows, sbatch))
        return _sweeping.status_of(points)
    lines = [shlex.join(["launch", *asked.axes.fixed, *point.overrides]) for point in kept]
    print("\n".join(("", *lines)))
    _sweeping.print_left_out(points)
    if sbatch is not None:
        print(f"\n# sbatch\n{sbatch.rstrip()}")
    say("launch: a dry run: nothing was started or written")
    return _sweeping.status_of(points)


def _closed(
    options: argparse.Namespace, chosen: Shortlist, directory: Path, points: Sequence[Point], ended: int
) -> int:
    """Say what was started; of runs that have ended here, show what came of them."""
    started = any(point.kept for point in points)
    if options.json:
        print_json(_document(chosen, directory, _sweeping.point_rows(directory, points)))
    else:
        _sweeping.print_left_out(points)
    if not started or ended == INTERRUPTED:
        return ended or _sweeping.status_of(points)
    if chosen.runs[0].cluster.kind == "slurm":
        if not options.json:
            print(f"as they end: launch plan --results {_plan_results.name_of(directory)}")
        return ended
    found = measurement.read(directory)
    if not options.json:
        print(_plan_results.text(found))
        print(f"its recipe: launch plan --results {_plan_results.name_of(directory)}")
    return 0 if found.measured else ended
