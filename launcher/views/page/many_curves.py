"""Curves of several runs over each other, thinned to what a page can hold, each with its own colour and dashes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.charts.html import Html, tag
from launcher.charts.lines import curves
from launcher.charts.page import Chart
from launcher.charts.thin import MOST, thinned
from launcher.rundir import progress, results

_POINTS = 8000
"""Of all curves of a chart together: four charts of them take about a megabyte and a half."""

_SHORTEST = 100
_DIGITS = 6

_METRICS = {
    "loss": "training loss",
    "eval_loss": "held-out loss",
    "grad_norm": "gradient norm",
    "learning_rate": "learning rate",
    "tokens_per_second": "tokens/s of all ranks",
}
"""Keys of a line of metrics, each a chart where any run has it."""

_LOGARITHMIC = frozenset({"loss", "eval_loss", "grad_norm", "learning_rate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The metrics of one run.

    Attributes:
        name: Of the run, as the legend says it.
        tokens_per_step: None where it is not known.
        points: Of each metric that it has, step and value, by step.
    """

    name: str
    tokens_per_step: int | None
    points: Mapping[str, Sequence[tuple[float, float]]]


def read(run: Path, name: str, tokens_per_step: int | None) -> Curve:
    """The curves of a run; a script that starts again repeats steps, of which the last one counts."""
    found: dict[str, dict[float, float]] = {key: {} for key in _METRICS}
    for line in results.steps(run):
        step = progress.number(line, "step")
        for key, points in found.items():
            if key == "tokens_per_second" and line.get("followed"):  # Following its memory takes time of its own.
                continue
            if step is not None and results.is_number(value := line.get(key, "")):
                points[step] = float(value)
    return Curve(
        name=name,
        tokens_per_step=tokens_per_step,
        points={key: sorted(points.items()) for key, points in found.items() if points},
    )


def switches(names: Sequence[str]) -> Html:
    """A box for each run, by which its curves are left out of all charts."""
    boxes = [tag("label", tag("input", type="checkbox", checked=True, data_series=name), f" {name}") for name in names]
    buttons = [tag("button", word, type="button", data_all_series=word) for word in ("all", "none")]
    return tag("fieldset", tag("legend", "shown"), *boxes, *buttons, class_="series")


def charts(found: Sequence[Curve], *, by_tokens: bool) -> Iterator[Chart]:
    """A chart of each metric by step; of the loss also by token.

    Args:
        found: The runs that are shown, in the order of the legend.
        by_tokens: True where a step has not as many tokens in all runs.
    """
    names = [curve.name for curve in found]
    for key, title in _METRICS.items():
        shown = [curve for curve in found if key in curve.points]
        if shown:
            yield _chart(key, title, "step", shown, names)
        if shown and by_tokens and key in ("loss", "eval_loss"):
            known = [curve for curve in shown if curve.tokens_per_step is not None]
            if known:
                yield _chart(key, title, "tokens", known, names)


def _chart(key: str, title: str, x: str, found: Sequence[Curve], names: Sequence[str]) -> Chart:
    most = min(MOST, max(_SHORTEST, _POINTS // len(found)))
    rows = [row for curve in found for row in _rows(curve, key, x, most)]
    whole = sum(len(curve.points[key]) for curve in found)
    spec = curves(rows, x=x, y=title, title=title, series="run", names=names)
    return Chart(
        title=f"{title} by {x}",
        spec={**spec, "usermeta": {"series": "run"}},
        said=f"{title} of {_runs(found)}, a line each; the table below has the last values",
        note=_note([row[title] for row in rows], whole),
        zoom=x,
        log=key in _LOGARITHMIC,
    )


def _rows(curve: Curve, key: str, x: str, most: int) -> Iterator[dict[str, Any]]:
    size = curve.tokens_per_step or 1 if x == "tokens" else 1
    for step, value in thinned(curve.points[key], most):
        shown = float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
        yield {"run": curve.name, x: int(step * size), _METRICS[key]: shown}


def _note(values: Sequence[float | None], whole: int) -> str:
    """What is not in the chart."""
    gaps = sum(value is None for value in values)
    parts = []
    if len(values) < whole:
        parts.append(f"{len(values):,} of {whole:,} points: of each stretch its least and its greatest value")
    if gaps:
        parts.append(f"{gaps:,} values are no number (NaN or infinite) and leave a gap")
    return "; ".join(parts)


def _runs(found: Sequence[Curve]) -> str:
    return "1 run" if len(found) == 1 else f"{len(found)} runs"
