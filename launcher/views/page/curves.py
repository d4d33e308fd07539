"""Curves of a run: losses, gradient norm, learning rate and speed by step, thinned where a run is long."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.charts.html import Html, table, tag
from launcher.charts.lines import curves
from launcher.charts.page import Chart, Section
from launcher.charts.thin import MOST, thinned
from launcher.rundir import progress, results
from launcher.views.page.source import Source

type Points = list[tuple[float, float]]

_SHOWN = 12
"""Rows of the table below a chart."""


def section(source: Source) -> Section:
    """A chart for each figure that the metrics hold."""
    rows = source.rows
    if not rows:
        text = (
            "No step has left a line in metrics.jsonl: the run has not begun to train, or ended before its first step."
        )
        parts: list[Chart | Html | str] = [tag("p", text, class_="missing")]
    else:
        parts = [*_broken(rows), *_losses(rows), *_single(rows), *_speed(source)]
    return Section(identity="training", title="Training", parts=parts)


def points(rows: Sequence[Mapping[str, Any]], key: str) -> Points:
    """Step and value of each line that has a finite value; of a step that was done twice the later one."""
    found = {int(row["step"]): value for row in rows if (value := progress.number(row, key)) is not None}
    return [(float(step), found[step]) for step in sorted(found)]


def drawn(named: Mapping[str, Points], value: str, *, series: str | None = "of") -> tuple[list[dict[str, Any]], str]:
    """Rows of a chart of some curves, thinned together to what a screen shows, and a sentence if they are."""
    most = max(8, MOST // max(1, len(named)))
    rows: list[dict[str, Any]] = []
    for name, curve in named.items():
        kept = thinned(curve, most)
        of = {} if series is None else {series: name}
        rows += [{"step": int(step), value: float(f"{number:.6g}"), **of} for step, number in kept]
    longest = max((len(curve) for curve in named.values()), default=0)
    if longest <= most:
        return rows, ""
    return rows, f"{longest:,} steps, drawn by {most:,} points: of each stretch its least and its greatest value."


def _chart(title: str, named: Mapping[str, Points], value: str, *, log: bool = True) -> Chart:
    rows, note = drawn(named, value, series="of" if len(named) > 1 else None)
    several = "of" if len(named) > 1 else None
    first = next(iter(named.values()))
    said = (
        f"{title} from {first[0][1]:.4g} at step {first[0][0]:,.0f} to {first[-1][1]:.4g} at step {first[-1][0]:,.0f}."
    )
    return Chart(
        title=title,
        spec=curves(rows, x="step", y=value, title=value, series=several),
        said=said,
        note=note,
        zoom="step",
        log=log,
        numbers=_numbers(named),
    )


def _numbers(named: Mapping[str, Points]) -> Html:
    """Some steps, evenly, with the last."""
    steps = sorted({step for curve in named.values() for step, _ in curve})
    count = min(_SHOWN, len(steps))
    chosen = [steps[(number + 1) * len(steps) // count - 1] for number in range(count)]
    values = {name: dict(curve) for name, curve in named.items()}
    rows = [
        (f"{step:,.0f}", *(f"{curve[step]:.5g}" if step in curve else "" for curve in values.values()))
        for step in chosen
    ]
    return table(["step", *named], rows)


def _losses(rows: Sequence[Mapping[str, Any]]) -> Iterator[Chart]:
    training, held_out = points(rows, "loss"), points(rows, "eval_loss")
    if training:
        named = {"training": training, **({"held out": held_out} if held_out else {})}
        yield _chart("Loss, training and held out" if held_out else "Loss", named, "loss")


def _single(rows: Sequence[Mapping[str, Any]]) -> Iterator[Chart]:
    for key, title in (("grad_norm", "Gradient norm"), ("learning_rate", "Learning rate")):
        if found := points(rows, key):
            yield _chart(title, {title: found}, title.lower())


def _speed(source: Source) -> Iterator[Chart]:
    # A step whose memory is followed takes time of its own.
    measured = points([row for row in source.rows if not row.get("followed")], "tokens_per_second")
    if measured:
        named = {"measured": measured}
        if predicted := points(source.rows, "predicted_tokens_per_second"):
            named["predicted"] = predicted
        yield _chart("Tokens a second, of all ranks", named, "tokens/s")


def _broken(rows: Sequence[Mapping[str, Any]]) -> Iterator[Html]:
    """Steps whose loss was no number, which no curve shows."""
    found = [row["step"] for row in rows if results.is_number(row["loss"]) and not math.isfinite(row["loss"])]
    if found:
        named = ", ".join(f"{step:,}" for step in found[:8]) + (", ..." if len(found) > 8 else "")
        yield tag("p", f"The loss is not a number at step {named}.", class_="bad")
