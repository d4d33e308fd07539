"""``launch plan --measure N``: the N best layouts as short runs, started once their cost is known and agreed to."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launcher.actions import layout_results, sweep
from launcher.actions.asking import folder
from launcher.actions.output import Output
from launcher.actions.plan_questions import MeasureRequest
from launcher.actions.trust import require_trust
from launcher.base.errors import INTERRUPTED, ConfigError, ConfigErrors
from launcher.base.terminal import ask_person, say, width
from launcher.base.units import rounded
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


def require(request: MeasureRequest, question: Question) -> None:
    """Refuse, before anything is searched, runs that nobody can agree to or that cannot start here.

    Raises:
        ConfigErrors: They are.
    """
    if request.measure is not None and request.measure < 1:
        raise ConfigErrors([ConfigError("--measure", request.measure, "how many layouts: 1 or more", ["--measure 3"])])
    if request.steps is not None:
        shortlist.require_steps(request.steps)
    require_trust(request.command_line(), trusted=request.trust)
    if not (request.yes or request.dry_run or request.ask):
        rule = "GPU-hours are asked about before a run starts, and there is no terminal to ask at"
        raise ConfigErrors([ConfigError("--measure", request.measure, rule, ["--yes", "--dry-run"])])
    errors = [obstacles(opening.spec, question.facts) for opening in question.openings]
    if all(errors):
        raise ConfigErrors(errors[0])


type Show = Callable[[str], None]


def measure(request: MeasureRequest, question: Question, found: Plan, show: Show | None) -> Output:
    """Start the best layouts of a plan as short runs, or show what would be started.

    Args:
        request: How many, and how long.
        question: What was asked.
        found: Its answer.
        show: Takes what is to be shown while the runs are waited for; None gives it to :func:`say`.
    """
    layouts = _startable(question, found.layouts, request.measure or 1)
    chosen = shortlist.shortlist(question, layouts, steps=request.steps or shortlist.STEPS)
    asked = measurement.sweep_of(
        chosen, question=question.words, catalog=question.catalog, facts=question.facts, trusted=request.trust
    )
    (show or say)(_text(chosen))
    if request.dry_run:
        return _rehearsed(chosen, asked)
    if not request.yes and ask_person("start them? [y/N] ").lower() not in ("y", "yes"):
        say("launch: nothing was started")
        return Output(document={}, text="")
    directory, points, ended = sweep.begun(asked, chosen.overrides, show=show, kind=measurement.KIND)
    return _closed(chosen, directory, points, ended)


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


def _rehearsed(chosen: Shortlist, asked: Sweep) -> Output:
    """The runs, each with the line that starts it alone and its verdict, and the text that Slurm would get."""
    points = [asked.point(number, words)[0] for number, words in enumerate(chosen.overrides)]
    sweep.say_remarks(asked)
    place = directory_for(asked.settings, measurement.KIND, folder=folder())
    kept = [point for point in points if point.kept]
    sbatch = array_text(place, asked.settings.cluster, len(kept)) if kept else None
    keys = ("id", "overrides", "verdict", "reason")
    rows = [{key: each.as_dict()[key] for key in keys} for each in points]
    lines = ["", *(shlex.join(["launch", *asked.axes.fixed, *point.overrides]) for point in kept)]
    lines += [text] if (text := sweep.left_out_text(points)) else []
    lines += [] if sbatch is None else [f"\n# sbatch\n{sbatch.rstrip()}"]
    return Output(
        document=_document(chosen, None, rows, sbatch),
        text="\n".join(lines),
        exit_status=sweep.status_of(points),
        said=("launch: a dry run: nothing was started or written",),
    )


def _closed(chosen: Shortlist, directory: Path, points: Sequence[Point], ended: int) -> Output:
    """Describe the runs that were started, and the results of those that have ended here."""
    document = _document(chosen, directory, sweep.point_rows(directory, points))
    lines = [text] if (text := sweep.left_out_text(points)) else []
    if not any(point.kept for point in points) or ended == INTERRUPTED:
        return Output(document=document, text="\n".join(lines), exit_status=ended or sweep.status_of(points))
    name = layout_results.name_of(directory)
    if chosen.runs[0].cluster.kind == "slurm":
        lines.append(f"as they end: launch plan --results {name}")
        return Output(document=document, text="\n".join(lines), exit_status=ended)
    found = measurement.read(directory)
    lines += [layout_results.text(found), f"its recipe: launch plan --results {name}"]
    return Output(document=document, text="\n".join(lines), exit_status=0 if found.measured else ended)
