"""Curves of one run or of several overlaid runs by step, thinned when they are long."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.charts.html import Html, table, tag
from launcher.charts.lines import MOST, curves, evenly, thinned
from launcher.charts.page import Chart, Section
from launcher.rundir import results
from launcher.views.page.source import Source

type Points = Sequence[tuple[float, float]]

_TABLE_ROWS = 12  # Most rows of the table below a chart: all steps would be longer than the page.
_POINTS = 8000  # Most points of all curves of a chart: four such charts take about 1.5 MB.
_SHORTEST = 100  # Fewest points of each of many curves: fewer would hide its shape.

_METRICS = {
    "loss": "training loss", "eval_loss": "held-out loss", "grad_norm": "gradient norm",
    "learning_rate": "learning rate", "tokens_per_second": "tokens/s of all ranks",
}  # fmt: skip
"""Metrics by key, each drawn as a chart if any run has it."""

_OF_A_RUN: Mapping[str, Mapping[str, str]] = {
    "loss": {"training": "loss", "held out": "eval_loss"},
    "gradient norm": {"gradient norm": "grad_norm"},
    "learning rate": {"learning rate": "learning_rate"},
    "tokens/s": {"measured": "tokens_per_second", "predicted": "predicted_tokens_per_second"},
}
"""Vertical axes on the page of one run, each with its lines and their keys; the first line is required."""


def section(source: Source) -> Section:
    """A chart for each metric of a run."""
    rows = source.rows
    if not rows:
        text = "metrics.jsonl has no line of a step: the run has not started training, or ended before its first step."
        parts: list[Chart | Html | str] = [tag("p", text, class_="missing")]
    else:
        parts = [*_broken(rows), *_of_run(rows), *_evaluated(rows)]
    return Section(identity="training", title="Training", parts=parts)


def points(rows: Sequence[JsonObject], key: str) -> Points:
    """Step and value of each line that has the metric; the later line of a repeated step."""
    if key == "tokens_per_second":  # Sampling memory slows the step.
        rows = [row for row in rows if not row.get("followed")]
    found = {int(row["step"]): float(row[key]) for row in rows if results.is_number(row.get(key))}
    return [(float(step), found[step]) for step in sorted(found)]


def _of_run(rows: Sequence[JsonObject]) -> Iterator[Chart]:
    sets = {f"held out: {name}": key for name, key in results.eval_sets(rows).items()}
    for value, known in _OF_A_RUN.items():
        keys = {**known, **sets} if value == "loss" else known
        named = {name: curve for name, key in keys.items() if (curve := points(rows, key))}
        if (first := next(iter(keys))) not in named:
            continue
        title = "Tokens a second, of all ranks" if value == "tokens/s" else value.capitalize()
        title += ", training and held out" if "held out" in named else ""
        (begin, before), (end, after) = named[first][0], named[first][-1]
        said = f"{title} from {before:.4g} at step {begin:,.0f} to {after:.4g} at step {end:,.0f}."
        series = "of" if len(named) > 1 else None
        yield _chart(title, value, named, series=series, said=said, log=True, numbers=_numbers(named))


def _chart(
    title: str,
    value: str,
    named: Mapping[str, Points],
    *,
    series: str | None,
    names: Sequence[str] = (),
    x: str = "step",
    **more: Any,
) -> Chart:
    """A chart of named lines, with ``value`` as the vertical axis and its title."""
    most = min(MOST, max(_SHORTEST, _POINTS // len(named)))
    rows = [
        {x: int(place), value: float(f"{number:.6g}") if math.isfinite(number) else None}
        | ({} if series is None else {series: name})
        for name, curve in named.items()
        for place, number in thinned(curve, most)
    ]
    spec = curves(rows, x=x, y=value, title=value, series=series, names=names)
    spec |= {"usermeta": {"series": series}} if names else {}
    note = _note([row[value] for row in rows], sum(map(len, named.values())))
    return Chart(title=title, spec=spec, note=note, zoom=x, **more)


def _note(values: Sequence[object], whole: int) -> str:
    gaps = sum(value is None for value in values)
    parts = []
    if len(values) < whole:
        parts.append(f"{len(values):,} of {whole:,} points: the minimum and maximum of each interval")
    if gaps:
        parts.append(f"{gaps:,} values are NaN or infinite and leave a gap")
    return "; ".join(parts)


def _numbers(named: Mapping[str, Points]) -> Html:
    chosen = evenly(sorted({step for curve in named.values() for step, _ in curve}), _TABLE_ROWS)
    values = [dict(curve) for curve in named.values()]
    rows = [[f"{step:,.0f}", *(f"{curve[step]:.5g}" if step in curve else "" for curve in values)] for step in chosen]
    return table(["step", *named], rows)


def _evaluated(rows: Sequence[JsonObject]) -> Iterator[Html]:
    if (found := results.last_evaluation(rows)) is not None:
        yield tag("p", f"The last evaluation, at step {found['step']:,}: {results.evaluation_text(found)}.")


def _broken(rows: Sequence[JsonObject]) -> Iterator[Html]:
    found = [row["step"] for row in rows if results.is_number(row["loss"]) and not math.isfinite(row["loss"])]
    if found:
        named = ", ".join(f"{step:,}" for step in found[:8]) + (", ..." if len(found) > 8 else "")
        yield tag("p", f"The loss is NaN or infinite at step {named}.", class_="bad")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The metrics of one of several runs."""

    name: str  # The run's name in the legend.
    tokens_per_step: int | None  # None where it is not known.
    points: Mapping[str, Points]  # Step and value of each metric that it has, by step.


def read(run: Path, name: str, tokens_per_step: int | None) -> Curve:
    """The curves of a run."""
    rows = results.steps(run)
    known = {key: curve for key in _METRICS if (curve := points(rows, key))}
    return Curve(name=name, tokens_per_step=tokens_per_step, points=known)


def switches(names: Sequence[str]) -> Html:
    """A checkbox for each run that hides its curves in all charts."""
    boxes = [tag("label", tag("input", type="checkbox", checked=True, data_series=name), f" {name}") for name in names]
    buttons = [tag("button", word, type="button", data_all_series=word) for word in ("all", "none")]
    return tag("fieldset", tag("legend", "shown"), *boxes, *buttons, class_="series")


def overlaid(found: Sequence[Curve], *, by_tokens: bool) -> Iterator[Chart]:
    """A chart of each metric of several runs by step, and of the loss by token when steps differ in tokens."""
    for key, value in _METRICS.items():
        for x in ("step", "tokens") if by_tokens and "loss" in key else ("step",):
            size = {curve.name: curve.tokens_per_step if x == "tokens" else 1 for curve in found if key in curve.points}
            named = {
                curve.name: [(place * (size[curve.name] or 0), number) for place, number in curve.points[key]]
                for curve in found
                if size.get(curve.name)
            }
            if named:
                runs = "1 run" if len(named) == 1 else f"{len(named)} runs"
                said = f"{value} of {runs}, a line each; the table below has the last values"
                names = [curve.name for curve in found]
                title, log = f"{value} by {x}", key != "tokens_per_second"
                yield _chart(title, value, named, series="run", names=names, x=x, said=said, log=log)
