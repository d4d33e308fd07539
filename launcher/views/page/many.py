"""``launch report RUN RUN...``: several runs on one page, overlaid and side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from launcher.base import secret
from launcher.base.units import GIB
from launcher.charts import html, table
from launcher.charts.html import Html, tag
from launcher.charts.page import Chart, Section, page
from launcher.charts.table import Cell, Column, Row
from launcher.rundir import by_files, contents
from launcher.rundir import names as run_names
from launcher.rundir.ranking import MEAN
from launcher.views import comparison, comparison_text
from launcher.views.comparison import Comparison, Side
from launcher.views.page import asked as page_asked
from launcher.views.page import many_bars, many_curves
from launcher.views.page.many_points import unit_of

MOST_CURVES = 24
"""Runs whose curves lie over each other; more could not be told apart."""

_TABLE = "runs"


def several(directories: Sequence[Path]) -> str:
    """The page of several runs."""
    found = comparison.compare(directories)
    names = comparison_text.names(found)
    sections = [
        Section(identity="curves", title="Curves", parts=[*_curves(found, names)]),
        Section(identity="predicted", title="Predicted and measured", parts=[*many_bars.charts(found.sides, names)]),
        Section(identity="table", title="What differs, and what came out", parts=[*_tables(found, names)]),
    ]
    lead = html.items((*comparison_text.sentences(found), *_damage(directories)))
    title = f"{len(names)} runs: {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}"
    return page(title, lead, sections, scripts=[table.script()], styles=[table.style()])


def _damage(directories: Sequence[Path]) -> Iterator[str]:
    """Of whom not all is known."""
    for directory in directories:
        if (damage := by_files.damage(directory)) is not None:
            yield f"of {run_names.id_of(directory)} not all is known: {damage}"


def _curves(found: Comparison, names: Sequence[str]) -> Iterator[Chart | Html | str]:
    named = [(side, name) for side, name in zip(found.sides, names, strict=True) if side.curve]
    if not named:
        yield tag("p", "No run has written metrics with a loss.", class_="missing")
        return
    shown = named
    if len(named) > MOST_CURVES:
        ranked = found.by.kind is not None
        by_loss = sorted(named, key=lambda pair: _rank(found.by.loss(pair[0].trained))) if ranked else named
        shown = [pair for pair in named if pair in by_loss[:MOST_CURVES]]
        which = "runs of the lowest loss" if ranked else "first runs"
        yield f"The {MOST_CURVES} {which}, of {len(named)} with metrics."
    yield many_curves.switches([name for _, name in shown])
    curves = [many_curves.read(Path(side.run.directory), name, side.tokens_per_step) for side, name in shown]
    yield from many_curves.charts(curves, by_tokens=bool(found.at_tokens))


def _rank(loss: float | None) -> float:
    return float("inf") if loss is None or loss != loss else loss


def _tables(found: Comparison, names: Sequence[str]) -> Iterator[Html | str]:
    paths, hidden = comparison_text.telling(found)
    if not paths:
        yield "The settings are the same."
    elif hidden:
        yield f"Not in the table, since they only follow: {', '.join(hidden)} (launch compare --json has all)."
    yield table.table(_TABLE, "Runs; \N{ASTERISK OPERATOR} is the best of a column", "run", *_runs(found, names, paths))
    for title, rows in (("step", found.at_steps), ("tokens", found.at_tokens)):
        if rows:
            lines = [[f"{at:,}", *(_text(loss, ".4f") for loss in losses)] for at, losses in rows.items()]
            yield html.table([title, *names], lines, caption=f"Loss at equal {'steps' if title == 'step' else title}")


def _runs(found: Comparison, names: Sequence[str], paths: Sequence[str]) -> tuple[list[Column], list[Row]]:
    sizes = [size for side in found.sides for size in (side.predicted_bytes, side.peak_bytes) if size is not None]
    unit = unit_of(sizes)
    name = "GiB" if unit == GIB else "MiB"
    least: Literal["least"] | None = None if found.by.kind is None else "least"
    columns = [
        Column(key="state", title="state"),
        *(Column(key=path, title=path) for path in paths),
        Column(key="steps", title="steps", form=","),
        Column(key="tokens", title="tokens", form=","),
        Column(key="loss", title="loss", form=".4f", best=least, hint=_loss_is(found)),
        Column(key="predicted_speed", title="tokens/s a GPU, predicted", form=",.0f"),
        Column(key="speed", title="tokens/s a GPU", form=",.0f", best="most", hint="median of the second half"),
        Column(key="gpus", title="GPUs", form=","),
        Column(key="predicted_memory", title=f"memory, predicted, {name}", form=",.2f"),
        Column(key="memory", title=f"memory, {name}", form=",.2f", best="least", hint="allocated on the worst rank"),
    ]
    rows = []
    for place, (side, called) in enumerate(zip(found.sides, names, strict=True)):
        settings = [_setting(found.differences[path][place]) for path in paths]
        sized = [None if size is None else size / unit for size in (side.predicted_bytes, side.peak_bytes)]
        speeds = (side.predicted_speed, side.speed_per_gpu, side.gpus)
        cells: list[Cell] = [side.run.state, *settings, side.steps, side.tokens, found.loss(side), *speeds, *sized]
        rows.append(Row(name=called, cells=cells, line=_line(Path(side.run.directory)), note=_note(side)))
    return columns, rows


def _loss_is(found: Comparison) -> str:
    return "the last one on held-out samples" if found.held_out else MEAN


def _line(run: Path) -> str | None:
    """What repeats a run, without its name and folder."""
    return page_asked.pasted(contents.known(run, contents.PLAN), contents.known(run, contents.SPEC))


def _note(side: Side) -> str:
    reason = f": {side.run.reason}" if side.run.reason else ""
    return f"{side.run.state}{reason}; in {side.run.directory}"


def _setting(value: object) -> Cell:
    """A setting as it would be typed, without a secret; numbers stay numbers."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if value is None or isinstance(value, int | float) else secret.hidden(str(value))


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
