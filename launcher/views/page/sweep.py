"""``launch report SWEEP``: every point of a sweep with its verdict and results, and their dependence on the axes."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from launcher.base import secret
from launcher.base.frozen import dataclass
from launcher.base.units import Pair
from launcher.charts import parallel, table
from launcher.charts.html import Html, items, joined, tag
from launcher.charts.page import Chart, Section, page
from launcher.charts.parallel import Axis
from launcher.charts.table import Cell, Column, Row
from launcher.rundir import contents, state
from launcher.sweeping import sweep
from launcher.views import comparison, runs
from launcher.views.check.piles import unit_for
from launcher.views.page import curves as page_curves
from launcher.views.page.many import SPEED_COLUMNS, loss_column, loss_rank, memory_columns

_TABLE = "points"
_CURVES = 12  # Most points whose curves are overlaid: more could hardly be told apart.
_REASONS = 12  # Most reasons for leaving points out that are listed; the table has them all.


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The points of a sweep so far, with the numbers that its page has of each."""

    directory: Path  # Of the sweep.
    words: tuple[str, ...] | None  # Its command line, as typed; None in a record without it.
    measures: bool  # True if the points are layouts that are measured for speed.
    rows: tuple[sweep.Row, ...]  # The points.
    # Settings that differ between points, with the value of each point as typed.
    axes: Mapping[str, tuple[str | None, ...]]
    fixed: Mapping[str, str]  # Settings that points name and that are equal in all of them.
    speeds: tuple[Pair[float], ...]  # Tokens a second and GPU of each point.
    sizes: tuple[Pair[float], ...]  # Allocated peak of the worst rank of each point, in ``unit``.
    unit: str  # GiB, or MiB for small runs: the same for all points, to compare them by eye.

    @property
    def best(self) -> sweep.Row | None:
        """The point with the lowest loss, or the fastest layout of a measurement; None without results."""
        if not self.measures:
            return sweep.best(self.rows)
        known = [(pair.measured, row) for pair, row in zip(self.speeds, self.rows, strict=True) if pair.measured]
        return max(known, key=lambda found: found[0])[1] if known else None


def _read(directory: Path) -> Found:
    content = contents.read(directory, state.SWEEP) or {}
    rows = tuple(sweep.rows(directory))
    typed = [_typed(row.point.overrides) for row in rows]
    keys = dict.fromkeys(key for each in typed for key in each)
    values = {key: tuple(words.get(key) for words in typed) for key in keys}
    sizes = [Pair(row.point.predicted_bytes, row.measured_bytes) for row in rows]
    unit, unit_name = unit_for(max((size for pair in sizes for size in pair.known), default=0))
    words = content.get("overrides")
    return Found(
        directory=directory,
        words=None if words is None else tuple(words),
        measures=content.get(sweep.MEASUREMENT) is not None,
        rows=rows,
        axes={key: found for key, found in values.items() if len(set(found)) > 1},
        fixed={key: found[0] for key, found in values.items() if len(set(found)) == 1 and found[0] is not None},
        speeds=tuple(Pair(row.point.predicted_tokens_per_second_per_gpu, _speed(directory, row)) for row in rows),
        sizes=tuple(Pair(_in_unit(pair.predicted, unit), _in_unit(pair.measured, unit)) for pair in sizes),
        unit=unit_name,
    )


def _in_unit(size: int | None, unit: int) -> float | None:
    return None if size is None else round(size / unit, 3)


def _typed(overrides: Sequence[str]) -> dict[str, str]:
    parted = (word.partition("=") for word in overrides)
    return {key.lstrip("+"): value for key, equals, value in parted if equals}


def _speed(directory: Path, row: sweep.Row) -> float | None:
    if row.tokens_per_second is None:
        return None
    return row.tokens_per_second / comparison.gpus(directory / row.point.id)


def swept(directory: Path) -> str:
    """The page of a sweep; raises BadRecord for an invalid ``sweep.json``."""
    found = _read(directory)
    sections = [
        Section(identity="axes", title="Axes and results", parts=[*_coordinates(found)]),
        Section(identity="all", title="Points", parts=[_points(found)]),
        Section(identity="left", title="Left out", parts=[*_left_out(found)]),
        Section(identity="curves", title="Curves", parts=[*_curves(found)]),
    ]
    kept = [section for section in sections if section.parts]
    return page(f"Sweep {directory.name}", _lead(found), kept, parts=(*table.PARTS, *parallel.PARTS))


def _lead(found: Found) -> Html:
    states = Counter(row.state for row in found.rows)
    counted = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in states.most_common())
    parts: list[Html] = [tag("p", f"{len(found.rows):,} points: {counted}.")]
    if found.fixed:
        parts.append(tag("p", f"In all: {' '.join(f'{key}={value}' for key, value in found.fixed.items())}."))
    said, _, line = runs.best_line(found.directory, found.best, found.rows).strip().partition("\n")
    if said and (found.best is not None or not found.measures):
        parts.append(tag("p", tag("strong", said[:1].upper() + said[1:])))
        parts += [tag("pre", secret.redacted(line), tabindex="0")] if line else []
    if found.words is not None:
        line = secret.redacted(shlex.join(["launch", "-m", *found.words]))
        parts.append(tag("details", tag("summary", "the command of the sweep"), tag("pre", line)))
    return joined(*parts)


def _coordinates(found: Found) -> Iterator[Chart | Html | str]:
    axes = [Axis(title=key, values=values) for key, values in found.axes.items()]
    outcomes = [axis for axis in _outcomes(found) if any(value is not None for value in axis.values)]
    if len(axes) + len(outcomes) < 2 or len(found.rows) < 2:
        yield tag("p", "Fewer than two settings vary; the table has everything.", class_="missing")
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
        note=f"Coloured by {title}; points without it, such as those left out, are grey and dotted; the best is bold. "
        "Drag along an axis to keep the points inside the marked range, also in the table; the filter of the table "
        "does the same from the keyboard.",
    )
    yield tag("p", tag("button", "clear the ranges", type="button", data_unmark=_TABLE, disabled=True))


def _outcomes(found: Found) -> Iterator[Axis]:
    speed = _measured_or_predicted("tokens/s a GPU", found.speeds)
    loss = Axis(title="loss", values=[row.loss for row in found.rows], result=True)
    memory = _measured_or_predicted(f"memory, {found.unit}", found.sizes)
    yield from (speed, loss, memory) if found.measures else (loss, speed, memory)


def _measured_or_predicted(title: str, pairs: Sequence[Pair[float]]) -> Axis:
    if any(pair.measured is not None for pair in pairs):
        return Axis(title=title, values=[pair.measured for pair in pairs], result=True)
    return Axis(title=f"{title}, predicted", values=[pair.predicted for pair in pairs], result=True)


def _points(found: Found) -> Html:
    by = sweep.basis(found.rows)
    columns = [
        Column(key="state", title="state"),
        Column(key="verdict", title="verdict"),
        *(Column(key=key, title=key) for key in found.axes),
        loss_column(by, held_out=by.kind == "held_out"),
        *SPEED_COLUMNS,
        *memory_columns(found.unit),
    ]
    settings = zip(*found.axes.values(), strict=True) if found.axes else [()] * len(found.rows)
    rows = [_row(found, *fact) for fact in zip(found.rows, settings, found.speeds, found.sizes, strict=True)]
    shown = [place for place in range(len(columns)) if place < 2 or any(row.cells[place] is not None for row in rows)]
    kept = [Row(name=row.name, cells=[row.cells[at] for at in shown], line=row.line, note=row.note) for row in rows]
    caption = "Points; \N{ASTERISK OPERATOR} is the best of a column, and a click on a row shows its line"
    return table.table(_TABLE, caption, "point", [columns[at] for at in shown], kept)


def _row(found: Found, row: sweep.Row, settings: Sequence[str | None], speed: Pair[float], size: Pair[float]) -> Row:
    figures = (row.loss, speed.predicted, speed.measured, size.predicted, size.measured)
    cells: list[Cell] = [row.state, row.point.verdict.replace("_", " "), *settings, *figures]
    line = None if row.run is None else secret.redacted(shlex.join(["launch", *sweep.words(found.directory, row)]))
    return Row(name=row.point.id, cells=cells, line=line, note=row.state + (f": {row.reason}" if row.reason else ""))


def _left_out(found: Found) -> Iterator[Html]:
    reasons = Counter(row.point.reason for row in found.rows if row.point.reason)
    if reasons:
        shown = [f"{count:,}: {reason}" for reason, count in reasons.most_common(_REASONS)]
        more = len(reasons) - len(shown)
        yield items([*shown, *([f"{more:,} more reasons, in the table"] if more else [])])


def _curves(found: Found) -> Iterator[Chart | Html | str]:
    best, by = [row for row in found.rows if row.loss is not None], sweep.basis(found.rows)
    if not best:
        return
    if by.kind is not None:
        best.sort(key=lambda row: loss_rank(by, row.trained))
    if len(best) > _CURVES:
        which = "points of the lowest loss" if by.kind is not None else "first points"
        yield f"The {_CURVES} {which}, of {len(best):,} with one."
    chosen = best[:_CURVES]
    names = [row.point.id for row in chosen]
    yield page_curves.switches(names)
    runs = [page_curves.read(found.directory / name, name, None) for name in names]
    yield from page_curves.overlaid(runs, by_tokens=False)
