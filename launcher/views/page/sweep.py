"""``launch report SWEEP``: every point of a sweep with its verdict, what came out, and how that hangs on the axes."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.base import secret
from launcher.base.units import GIB
from launcher.charts import parallel, table
from launcher.charts.html import Html, items, joined, tag
from launcher.charts.page import Chart, Section, page
from launcher.charts.parallel import Axis
from launcher.charts.table import Cell, Column, Row
from launcher.rundir import ranking
from launcher.sweeping import outcomes
from launcher.views import sweep_table
from launcher.views.page import many_curves, many_points
from launcher.views.page.many_points import Found, Numbers

_TABLE = "points"
_CURVES = 12
_REASONS = 12


def swept(directory: Path) -> str:
    """The page of a sweep.

    Raises:
        BadRecord: ``sweep.json`` does not hold what it should.
    """
    found = many_points.read(directory)
    sections = [
        Section(identity="axes", title="Axes and results", parts=[*_coordinates(found)]),
        Section(identity="all", title="Points", parts=[_points(found)]),
        Section(identity="left", title="Left out", parts=[*_left_out(found)]),
        Section(identity="curves", title="Curves", parts=[*_curves(found)]),
    ]
    scripts, styles = [table.script(), parallel.script()], [table.style()]
    kept = [section for section in sections if section.parts]
    return page(f"Sweep {directory.name}", _lead(found), kept, scripts=scripts, styles=styles)


def _lead(found: Found) -> Html:
    """How many points came to what, the best one, and the line that started all."""
    states = Counter("left out" if row.run is None else row.run.state for row in found.rows)
    counted = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in states.most_common())
    parts: list[Html] = [tag("p", f"{len(found.rows):,} points: {counted}.")]
    if found.fixed:
        parts.append(tag("p", f"In all: {' '.join(f'{key}={value}' for key, value in found.fixed.items())}."))
    said, _, line = sweep_table.best_line(found.directory, found.best, found.rows).strip().partition("\n")
    if said and (found.best is not None or not found.measures):
        parts.append(tag("p", tag("strong", said[:1].upper() + said[1:])))
        parts += [tag("pre", secret.hidden(line), tabindex="0")] if line else []
    if found.words is not None:
        line = secret.hidden(shlex.join(["launch", "-m", *found.words]))
        parts.append(tag("details", tag("summary", "the line of the sweep"), tag("pre", line)))
    return joined(*parts)


def _coordinates(found: Found) -> Iterator[Chart | Html | str]:
    axes = [Axis(title=key, values=values) for key, values in found.axes.items()]
    outcomes = [axis for axis in _outcomes(found) if any(value is not None for value in axis.values)]
    if len(axes) + len(outcomes) < 2 or len(found.rows) < 2:
        yield tag("p", "Fewer than two things vary: the table has all of them.", class_="missing")
        return
    coloured = len(axes) if outcomes else len(axes) - 1
    names, best = [row.point.id for row in found.rows], found.best
    spec = parallel.parallel(
        _TABLE, names, [*axes, *outcomes], coloured=coloured, best=None if best is None else best.point.id
    )
    title = [*axes, *outcomes][coloured].title
    yield Chart(
        title="A line for each point",
        spec=spec,
        said=f"{len(names):,} points over {len(axes)} settings and {len(outcomes)} results; the table has the numbers",
        note=f"Coloured by {title}; points without it, as those left out, are grey and dotted; the best one is bold. "
        "Drag along an axis to keep the points that cross the marked part, in the table, too; the filter of the table "
        "does the same from the keyboard.",
    )
    yield tag("p", tag("button", "clear the marks", type="button", data_unmark=_TABLE, disabled=True))


def _outcomes(found: Found) -> Iterator[Axis]:
    """The results, the first of which is the one in question."""
    speed = _measured_or_predicted("tokens/s a GPU", found.speeds, found.predicted_speeds)
    loss = Axis(title="loss", values=found.losses, result=True)
    name = "GiB" if found.unit == GIB else "MiB"
    memory = _measured_or_predicted(f"memory, {name}", found.sizes, found.predicted_sizes)
    yield from (speed, loss, memory) if found.measures else (loss, speed, memory)


def _measured_or_predicted(title: str, measured: Numbers, predicted: Numbers) -> Axis:
    """The measured figures, where there are none yet the predicted ones."""
    if any(value is not None for value in measured):
        return Axis(title=title, values=measured, result=True)
    return Axis(title=f"{title}, predicted", values=predicted, result=True)


def _loss_is(by: ranking.Basis) -> str:
    return "the last one on held-out samples" if by.kind == "held_out" else ranking.MEAN


def _points(found: Found) -> Html:
    by = outcomes.basis(found.rows)
    name = "GiB" if found.unit == GIB else "MiB"
    columns = [
        Column(key="state", title="state"),
        Column(key="verdict", title="verdict"),
        *(Column(key=key, title=key) for key in found.axes),
        Column(key="loss", title="loss", form=".4f", best=None if by.kind is None else "least", hint=_loss_is(by)),
        Column(key="predicted_speed", title="tokens/s a GPU, predicted", form=",.0f"),
        Column(key="speed", title="tokens/s a GPU", form=",.0f", best="most", hint="median of the second half"),
        Column(key="predicted_memory", title=f"memory, predicted, {name}", form=",.2f"),
        Column(key="memory", title=f"memory, {name}", form=",.2f", best="least", hint="allocated on the worst rank"),
    ]
    facts = zip(
        found.rows,
        zip(*found.axes.values(), strict=True) if found.axes else [()] * len(found.rows),
        found.predicted_speeds,
        found.speeds,
        found.predicted_sizes,
        found.sizes,
        strict=True,
    )
    rows = [_row(found, row, settings, figures) for row, settings, *figures in facts]
    shown = [place for place in range(len(columns)) if place < 2 or any(row.cells[place] is not None for row in rows)]
    kept = [Row(name=row.name, cells=[row.cells[at] for at in shown], line=row.line, note=row.note) for row in rows]
    caption = "Points; \N{ASTERISK OPERATOR} is the best of a column, and a click on a row shows its line"
    return table.table(_TABLE, caption, "point", [columns[at] for at in shown], kept)


def _row(found: Found, row: outcomes.Row, settings: Sequence[str | None], figures: Sequence[float | None]) -> Row:
    now = "left out" if row.run is None else row.run.state
    reason = row.point.reason or (None if row.run is None else row.run.reason)
    cells: list[Cell] = [now, row.point.verdict.replace("_", " "), *settings, row.loss, *figures]
    return Row(name=row.point.id, cells=cells, line=_line(found, row), note=f"{now}: {reason}" if reason else now)


def _line(found: Found, row: outcomes.Row) -> str | None:
    """The line that repeats a point; of one that was left out, the line that judges it."""
    if row.run is not None:
        return secret.hidden(shlex.join(["launch", *outcomes.words(found.directory, row)]))
    return None


def _left_out(found: Found) -> Iterator[Html]:
    """The reasons, each with how many points it is of."""
    reasons = Counter(row.point.reason for row in found.rows if row.point.reason)
    if reasons:
        shown = [f"{count:,}: {reason}" for reason, count in reasons.most_common(_REASONS)]
        more = len(reasons) - len(shown)
        yield items([*shown, *([f"{more:,} more reasons, in the table"] if more else [])])


def _curves(found: Found) -> Iterator[Chart | Html | str]:
    best, by = [row for row in found.rows if row.loss is not None], outcomes.basis(found.rows)
    if not best:
        return
    if by.kind is not None:
        best.sort(key=lambda row: loss if (loss := by.loss(row.trained)) is not None and loss == loss else float("inf"))
    if len(best) > _CURVES:
        which = "points of the lowest loss" if by.kind is not None else "first points"
        yield f"The {_CURVES} {which}, of {len(best):,} with one."
    chosen = best[:_CURVES]
    names = [row.point.id for row in chosen]
    yield many_curves.switches(names)
    runs = [many_curves.read(found.directory / name, name, None) for name in names]
    yield from many_curves.charts(runs, by_tokens=False)
