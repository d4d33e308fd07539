"""``launch plan --measure N`` and ``--results ID``: the best layouts as short runs, and the fastest as a recipe."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from launcher.actions import recipes, sweep
from launcher.actions.find_runs import named
from launcher.actions.requests import MeasureRequest, Output, folder
from launcher.actions.trust_gate import require_trust
from launcher.base.errors import INTERRUPTED, ConfigError, ConfigErrors, SubmitError
from launcher.base.files import JsonObject
from launcher.base.terminal import ask_person, say, width, wrapped
from launcher.base.units import compared, gib, rounded
from launcher.config.catalog import Catalog
from launcher.config.recipes import load
from launcher.planner import shortlist
from launcher.planner.layouts import Layout, Plan
from launcher.planner.question import Question
from launcher.planner.shortlist import Shortlist
from launcher.preflight.this_machine import obstacles
from launcher.rundir import run_names
from launcher.rundir.record import directory_for
from launcher.submission.slurm_jobs import array_text
from launcher.sweeping import measurement
from launcher.sweeping.measurement import Measured, Results
from launcher.sweeping.point import Point
from launcher.sweeping.sweep import Sweep

_HEADINGS = ("#", "layout", "state", "tokens/s a GPU", "predicted", "memory", "predicted")
_FORM = "{:>2}  {:6}  {:9}  {:>14}  {:>9}  {:>10}  {:>10}"

type Show = Callable[[str], None]


def require_measurable(request: MeasureRequest, question: Question) -> None:
    """Raise ConfigErrors, before any search, for runs that nobody can agree to or that cannot start here."""
    if request.measure is not None and request.measure < 1:
        raise ConfigErrors([ConfigError("--measure", request.measure, "must be 1 or more layouts", ["--measure 3"])])
    if request.steps is not None:
        shortlist.require_steps(request.steps)
    require_trust(request.command_line(), trusted=request.trust)
    if not (request.yes or request.dry_run or request.ask):
        rule = "spending GPU-hours needs consent before a run starts, and there is no terminal to ask on"
        raise ConfigErrors([ConfigError("--measure", request.measure, rule, ["--yes", "--dry-run"])])
    errors = [obstacles(opening.spec, question.facts) for opening in question.openings]
    if all(errors):
        raise ConfigErrors(errors[0])


def measure(request: MeasureRequest, question: Question, found: Plan, show: Show | None) -> Output:
    """Start the best layouts of a plan as short runs, or show what would start."""
    layouts = _startable(question, found.layouts, request.measure or 1)
    chosen = shortlist.shortlist(question, layouts, steps=request.steps or shortlist.STEPS)
    swept = measurement.sweep_of(
        chosen, question=question.words, catalog=question.catalog, facts=question.facts, trusted=request.trust
    )
    (show or say)(_text(chosen))
    if request.dry_run:
        return _dry_run(chosen, swept)
    if not request.yes and ask_person("start them? [y/N] ").lower() not in ("y", "yes"):
        say("launch: nothing was started")
        return Output(document={}, text="")
    directory, points, ended = sweep.begin_sweep(swept, chosen.overrides, show=show, kind=measurement.KIND)
    return _report_runs(chosen, directory, points, ended)


def _startable(question: Question, layouts: Sequence[Layout], count: int) -> list[Layout]:
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
        say(f"launch: {count} layouts were requested and there are only {len(chosen)}: these are measured")
    return chosen[:count]


def _wrapped(text: str, first: str = "", others: str = "  ") -> str:
    return "\n".join(wrapped(text, width(), first, others))


def _text(chosen: Shortlist) -> str:
    run = chosen.runs[0]
    count, kind = len(chosen.runs), "a Slurm array" if run.cluster.kind == "slurm" else "one after the other, here"
    runs = "1 short run" if count == 1 else f"{count} short runs"
    lines = ["", f"{runs} of {chosen.steps} steps on {measurement.machine_text(run)}, {kind}:"]
    for number, words in enumerate(chosen.overrides):
        text = " ".join(words) or "as the words say"
        lines += wrapped(text, width(), f"  {number:03d}  ", " " * 7)
    if chosen.left_out:
        lines.append(_wrapped(f"left out of these runs, and back in the winner's recipe: {' '.join(chosen.left_out)}"))
    lines.append(_wrapped("random tokens, no checkpoint, no evaluation, no tracker"))
    return "\n".join((*lines, _wrapped(_cost(chosen))))


def _cost(chosen: Shortlist) -> str:
    each, hours, most = chosen.price_per_gpu_hour, chosen.gpu_hours, chosen.most_gpu_hours
    unit = "rank-hours" if chosen.runs[0].hardware.device == "cpu" else "GPU-hours"

    def paid(number: float) -> str:
        return "" if each is None else f" (cost {rounded(number * each)})"

    estimate = f"how many {unit} the steps take is not predicted"
    if hours is not None:
        estimate = f"the steps take {rounded(hours)} {unit}{paid(hours)} by the estimate, without start-up"
    price = "" if each is None else f", at {each:g} a GPU-hour"
    if chosen.runs[0].cluster.kind != "slurm":
        return f"{estimate}{price}; no time limit ends a run on this machine, Ctrl-C does"
    limit = f"{chosen.time_limit_min} min for each run"
    return f"{estimate}; at most {rounded(most)}{paid(most)} by the time limit of {limit}{price}"


def _document(
    chosen: Shortlist, directory: Path | None, rows: Sequence[JsonObject], sbatch: str | None = None
) -> JsonObject:
    each, hours, most = chosen.price_per_gpu_hour, chosen.gpu_hours, chosen.most_gpu_hours
    content: JsonObject = {
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


def _dry_run(chosen: Shortlist, swept: Sweep) -> Output:
    points = [swept.point(number, words)[0] for number, words in enumerate(chosen.overrides)]
    sweep.report_remarks(swept)
    place = directory_for(swept.settings, measurement.KIND, folder=folder())
    kept = [point for point in points if point.kept]
    sbatch = array_text(place, swept.settings.cluster, len(kept)) if kept else None
    keys = ("id", "overrides", "verdict", "reason")
    rows = [{key: each.as_dict()[key] for key in keys} for each in points]
    lines = ["", *(shlex.join(["launch", *swept.axes.fixed, *point.overrides]) for point in kept)]
    lines += [left_out] if (left_out := sweep.left_out_text(points)) else []
    lines += [] if sbatch is None else [f"\n# sbatch\n{sbatch.rstrip()}"]
    return Output(
        document=_document(chosen, None, rows, sbatch),
        text="\n".join(lines),
        exit_status=sweep.status_of(points),
        said=("launch: a dry run: nothing was started or written",),
    )


def _report_runs(chosen: Shortlist, directory: Path, points: Sequence[Point], ended: int) -> Output:
    lines, name = [left_out] if (left_out := sweep.left_out_text(points)) else [], _typed_name(directory)
    if not any(point.kept for point in points) or ended == INTERRUPTED:
        ended = ended or sweep.status_of(points)
    elif chosen.runs[0].cluster.kind == "slurm":
        lines.append(f"as they end: launch plan --results {name}")
    else:
        found = measurement.read(directory)
        lines += [results_text(found), f"its recipe: launch plan --results {name}"]
        ended = 0 if found.measured else ended
    document = _document(chosen, directory, sweep.point_rows(directory, points))
    return Output(document=document, text="\n".join(lines), exit_status=ended)


def read_results(run: str, *, save: str | None, ask: bool) -> Results:
    """The results of a measurement so far; raises ConfigErrors if it is not one, or has nothing to save yet."""
    directory = named([run], ask=ask).sweep
    if directory is None:
        rule = "it is a run, not a measurement of layouts"
        raise ConfigErrors([ConfigError("--results", run, rule, [f"launch status {run}"])])
    found = measurement.read(directory)
    if save is not None:
        recipes.require_name("--save", save, "--save mine")
        if not found.measured:
            rule = "no run has finished, so there is no fastest layout yet"
            raise ConfigErrors([ConfigError("--save", save, rule, [f"launch status {_typed_name(found.directory)}"])])
    return found


def _typed_name(directory: Path) -> str:
    return shlex.quote(run_names.name_of(directory, folder()))


def results_text(found: Results) -> str:
    """The layouts for a terminal, those with a result first; below each its words, or why it has no result."""
    lines = [_FORM.format(*_HEADINGS)]
    for place, row in _ranked(found):
        figures = [_number(row.tokens_per_second_per_gpu), _number(row.predicted_per_gpu)]
        figures += ["-" if size is None else gib(size) for size in (row.measured_bytes, row.predicted_bytes)]
        lines.append(_FORM.format(place or "-", row.row.point.id, row.row.state, *figures))
        for text in filter(None, (" ".join(row.row.point.overrides), _compared(row))):
            lines.append(_wrapped(text, first=" " * 6, others=" " * 6))
    if found.waits:
        lines.append(f"\n{found.waits} of {len(found.rows)} runs have not ended")
    elif not found.measured:
        lines.append("\nno layout was measured")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else rounded(value)


def _compared(row: Measured) -> str:
    measured, predicted = row.tokens_per_second_per_gpu, row.predicted_per_gpu
    if measured is None:
        return row.row.reason or ""
    parts = []
    if predicted is not None:
        words = compared(measured / predicted)
        parts.append(f"{words} {'as' if 'as fast' in words else 'than'} predicted")
    if row.measured_bytes is not None and row.predicted_bytes:
        more = round(100 * (row.measured_bytes / row.predicted_bytes - 1))
        much = f"{abs(more)}% {'more' if more > 0 else 'less'} memory than predicted"
        parts.append(much if more else "memory as predicted")
    return ", ".join(parts)


def _ranked(found: Results) -> list[tuple[int | None, Measured]]:
    count = len(found.measured)
    return [(number if number <= count else None, row) for number, row in enumerate(found.rows, 1)]


def results_document(found: Results, recipe: Path | None) -> JsonObject:
    """The document of ``launch plan --results --json``."""
    record = found.record
    content = {
        "id": found.directory.name,
        "directory": str(found.directory),
        "question": record.question,
        "training": record.training,
        "steps": record.steps,
        "machine": record.machine,
        "versions": asdict(record.versions),
        "open": found.waits,
        "points": [row.as_dict(place) for place, row in _ranked(found)],
        "recipe": None if recipe is None else {"path": str(recipe), "use": f"launch recipe={recipe.stem}"},
    }
    return {"schema": 1, "measurement": content}


def write_winner(found: Results, save: str | None, *, trusted: bool) -> Path | None:
    """Write the recipe of the fastest layout: with ``--save`` of those so far, else once all runs have ended.

    A recipe already written from the same results stays; a different one of this name raises SubmitError.
    """
    if not found.measured or (save is None and found.waits):
        return None
    best = found.measured[0]
    name, source = save or found.directory.name, measurement.source(found)
    recipes.require_name("--save", name, "--save mine")
    path = recipes.recipe_path(name)
    if path.is_file() and _source_of(path) == source:
        return path
    run = best.directory or found.directory
    catalog = Catalog(folder=recipes.typing_folder(run))
    words, summary = (*found.record.training, *best.row.point.overrides), measurement.summary(found)
    try:
        return recipes.write_recipe(name, words, catalog, summary=summary, source=source, run=run, trusted=trusted)
    except SubmitError as error:
        raise SubmitError(f"{error}, as --save NAME") from None


def _source_of(path: Path) -> str | None:
    try:
        return load(path).source
    except ConfigErrors:
        return None
