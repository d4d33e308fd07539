"""Curves of runs by step, of one run or of several over each other, thinned where they are long."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.charts.html import Html, table, tag
from launcher.charts.lines import MOST, curves, evenly, thinned
from launcher.charts.page import Chart, Section
from launcher.rundir import results
from launcher.views.page.source import Source

type Points = list[tuple[float, float]]

_TABLE_ROWS = 12  # Rows of the table below a chart: a table of all steps would be longer than the page.
_POINTS = 8000  # Points of all curves of a chart together: four charts of them take about a megabyte and a half.
_SHORTEST = 100  # Points that each of many curves has at least: fewer would hide its shape.

_METRICS = {
    "loss": "training loss", "eval_loss": "held-out loss", "grad_norm": "gradient norm",
    "learning_rate": "learning rate", "tokens_per_second": "tokens/s of all ranks",
}  # fmt: skip
"""Keys of a line of metrics, each a chart where any run has it."""


def section(source: Source) -> Section:
    """A chart for each figure that the metrics of a run hold."""
    rows = source.rows
    if not rows:
        text = (
            "No step has left a line in metrics.jsonl: the run has not begun to train, or ended before its first step."
        )
        parts: list[Chart | Html | str] = [tag("p", text, class_="missing")]
    else:
        parts = [*_broken(rows), *_of_run(rows)]
    return Section(identity="training", title="Training", parts=parts)


def points(rows: Sequence[JsonObject], key: str) -> Points:
    """Step and value of each line that has a finite value; of a step that was done twice the later one."""
    found = {int(row["step"]): value for row in rows if (value := results.number(row, key)) is not None}
    return [(float(step), found[step]) for step in sorted(found)]


def _of_run(rows: Sequence[JsonObject]) -> Iterator[Chart]:
    if training := points(rows, "loss"):
        held_out = points(rows, "eval_loss")
        named = {"training": training, **({"held out": held_out} if held_out else {})}
        yield _chart("Loss, training and held out" if held_out else "Loss", named, "loss")
    for key, title in (("grad_norm", "Gradient norm"), ("learning_rate", "Learning rate")):
        if found := points(rows, key):
            yield _chart(title, {title: found}, title.lower())
    # A step whose memory is followed takes time of its own.
    if measured := points([row for row in rows if not row.get("followed")], "tokens_per_second"):
        predicted = points(rows, "predicted_tokens_per_second")
        named = {"measured": measured, **({"predicted": predicted} if predicted else {})}
        yield _chart("Tokens a second, of all ranks", named, "tokens/s")


def _chart(title: str, named: Mapping[str, Points], value: str) -> Chart:
    most, several = max(8, MOST // len(named)), len(named) > 1
    rows = [
        {"step": int(step), value: float(f"{number:.6g}"), **({"of": name} if several else {})}
        for name, curve in named.items()
        for step, number in thinned(curve, most)
    ]
    longest = max(map(len, named.values()))
    note = f"{longest:,} steps, drawn by {most:,} points: of each stretch its least and its greatest value."
    (begin, before), *_ = first = next(iter(named.values()))
    end, after = first[-1]
    return Chart(
        title=title,
        spec=curves(rows, x="step", y=value, title=value, series="of" if several else None),
        said=f"{title} from {before:.4g} at step {begin:,.0f} to {after:.4g} at step {end:,.0f}.",
        note=note if longest > most else "",
        zoom="step",
        log=True,
        numbers=_numbers(named),
    )


def _numbers(named: Mapping[str, Points]) -> Html:
    chosen = evenly(sorted({step for curve in named.values() for step, _ in curve}), _TABLE_ROWS)
    values = [dict(curve) for curve in named.values()]
    rows = [[f"{step:,.0f}", *(f"{curve[step]:.5g}" if step in curve else "" for curve in values)] for step in chosen]
    return table(["step", *named], rows)


def _broken(rows: Sequence[JsonObject]) -> Iterator[Html]:
    found = [row["step"] for row in rows if results.is_number(row["loss"]) and not math.isfinite(row["loss"])]
    if found:
        named = ", ".join(f"{step:,}" for step in found[:8]) + (", ..." if len(found) > 8 else "")
        yield tag("p", f"The loss is not a number at step {named}.", class_="bad")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The metrics of one of several runs."""

    name: str  # The run's name in the legend.
    tokens_per_step: int | None  # None where it is not known.
    points: Mapping[str, Sequence[tuple[float, float]]]  # Step and value of each metric that it has, by step.


def read(run: Path, name: str, tokens_per_step: int | None) -> Curve:
    """The curves of a run; of a step that a script has repeated the last value counts."""
    found: dict[str, dict[float, float]] = {key: {} for key in _METRICS}
    for line in results.steps(run):
        step = results.number(line, "step")
        for key, values in found.items():
            if key == "tokens_per_second" and line.get("followed"):  # Following its memory takes time of its own.
                continue
            if step is not None and results.is_number(value := line.get(key, "")):
                values[step] = float(value)
    known = {key: sorted(values.items()) for key, values in found.items() if values}
    return Curve(name=name, tokens_per_step=tokens_per_step, points=known)


def switches(names: Sequence[str]) -> Html:
    """A box for each run that leaves its curves out of all charts."""
    boxes = [tag("label", tag("input", type="checkbox", checked=True, data_series=name), f" {name}") for name in names]
    buttons = [tag("button", word, type="button", data_all_series=word) for word in ("all", "none")]
    return tag("fieldset", tag("legend", "shown"), *boxes, *buttons, class_="series")


def overlaid(found: Sequence[Curve], *, by_tokens: bool) -> Iterator[Chart]:
    """A chart of each metric of several runs by step; of the loss also by token, where their steps differ in tokens."""
    names = [curve.name for curve in found]
    for key in _METRICS:
        shown = [curve for curve in found if key in curve.points]
        if shown:
            yield _overlay(key, "step", shown, names)
        known = [curve for curve in shown if curve.tokens_per_step is not None]
        if known and by_tokens and key in ("loss", "eval_loss"):
            yield _overlay(key, "tokens", known, names)


def _overlay(key: str, x: str, found: Sequence[Curve], names: Sequence[str]) -> Chart:
    most, title = min(MOST, max(_SHORTEST, _POINTS // len(found))), _METRICS[key]
    rows = [
        {
            "run": curve.name,
            x: int(step * (curve.tokens_per_step or 1 if x == "tokens" else 1)),
            title: float(f"{value:.6g}") if math.isfinite(value) else None,
        }
        for curve in found
        for step, value in thinned(curve.points[key], most)
    ]
    runs = "1 run" if len(found) == 1 else f"{len(found)} runs"
    spec = curves(rows, x=x, y=title, title=title, series="run", names=names)
    return Chart(
        title=f"{title} by {x}",
        spec={**spec, "usermeta": {"series": "run"}},
        said=f"{title} of {runs}, a line each; the table below has the last values",
        note=_note([row[title] for row in rows], sum(len(curve.points[key]) for curve in found)),
        zoom=x,
        log=key != "tokens_per_second",
    )


def _note(values: Sequence[object], whole: int) -> str:
    gaps = sum(value is None for value in values)
    parts = []
    if len(values) < whole:
        parts.append(f"{len(values):,} of {whole:,} points: of each stretch its least and its greatest value")
    if gaps:
        parts.append(f"{gaps:,} values are no number (NaN or infinite) and leave a gap")
    return "; ".join(parts)
