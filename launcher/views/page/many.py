"""``launch report RUN RUN...``: several runs on one page, overlaid and side by side."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher.base import secret
from launcher.base.units import Pair, gib, rounded
from launcher.charts import html, table
from launcher.charts.bars import Segment, bars
from launcher.charts.html import Html, tag
from launcher.charts.page import Chart, Section, page, write_figure
from launcher.charts.table import Cell, Column, Row
from launcher.rundir import contents, results, run_names, status
from launcher.rundir.results import Basis
from launcher.views import comparison, comparison_text
from launcher.views.check.piles import unit_for
from launcher.views.comparison import Comparison, Side
from launcher.views.page import asked as page_asked
from launcher.views.page import curves as page_curves
from launcher.views.page.curves import Curve

MOST_CURVES = 24  # Most runs whose curves are overlaid: more could not be told apart.
_TABLE = "runs"
_COLOURS = {"predicted": "#b3d4ea", "measured": "#0072b2"}
"""One hue in several lightnesses."""


def several(directories: Sequence[Path]) -> str:
    """The page of several runs."""
    found = comparison.compare(directories)
    names = comparison_text.names(found)
    sections = [
        Section(identity="curves", title="Curves", parts=[*_curves(found, names)]),
        Section(identity="predicted", title="Predicted and measured", parts=[*_bars(found.sides, names)]),
        Section(identity="table", title="Settings and results", parts=[*_tables(found, names)]),
    ]
    damaged = ((directory, status.damage(directory)) for directory in directories)
    unread = (f"of {run_names.id_of(place)} not all is known: {why}" for place, why in damaged if why is not None)
    lead = html.items((*comparison_text.sentences(found), *unread))
    title = f"{len(names)} runs: {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}"
    return page(title, lead, sections, parts=table.PARTS)


def write(path: Path, found: Comparison) -> None:
    """Write a chart of the losses to a file, by :func:`~launcher.charts.page.write_figure`."""
    named = zip(found.sides, comparison_text.names(found), strict=True)
    losses = [Curve(name=name, tokens_per_step=one.tokens_per_step, points={"loss": one.curve}) for one, name in named]
    drawn = list(page_curves.overlaid(losses, by_tokens=bool(found.at_tokens)))
    title = " and ".join(side.run.id for side in found.sides)
    sections = [Section(identity="losses", title="Training loss", parts=drawn)]
    write_figure(path, [title], drawn, lambda: page(title, html.joined(), sections))


def _curves(found: Comparison, names: Sequence[str]) -> Iterator[Chart | Html | str]:
    named = [(side, name) for side, name in zip(found.sides, names, strict=True) if side.curve]
    if not named:
        yield tag("p", "No run has written metrics with a loss.", class_="missing")
        return
    shown = named
    if len(named) > MOST_CURVES:
        ranked = found.by.kind is not None
        by_loss = sorted(named, key=lambda pair: loss_rank(found.by, pair[0].trained)) if ranked else named
        shown = [pair for pair in named if pair in by_loss[:MOST_CURVES]]
        which = "runs of the lowest loss" if ranked else "first runs"
        yield f"The {MOST_CURVES} {which}, of {len(named)} with metrics."
    yield page_curves.switches([name for _, name in shown])
    curves = [page_curves.read(Path(side.run.directory), name, side.tokens_per_step) for side, name in shown]
    yield from page_curves.overlaid(curves, by_tokens=bool(found.at_tokens))


def loss_rank(by: Basis, trained: results.Trained | None) -> float:
    """A loss as a sort key; unknown and NaN come last."""
    loss = by.loss(trained)
    return float("inf") if loss is None or loss != loss else loss


def _tables(found: Comparison, names: Sequence[str]) -> Iterator[Html | str]:
    paths, hidden = comparison_text.telling(found)
    if not paths:
        yield "The settings are the same."
    elif hidden:
        yield f"Not in the table, since they follow from others: {', '.join(hidden)} (launch compare --json has all)."
    yield table.table(_TABLE, "Runs; \N{ASTERISK OPERATOR} is the best of a column", "run", *_runs(found, names, paths))
    for title, rows in (("step", found.at_steps), ("tokens", found.at_tokens)):
        if rows:
            lines = [[f"{at:,}", *comparison_text.losses_text(losses)] for at, losses in rows.items()]
            yield html.table([title, *names], lines, caption=f"Loss at equal {'steps' if title == 'step' else title}")


def _runs(found: Comparison, names: Sequence[str], paths: Sequence[str]) -> tuple[list[Column], list[Row]]:
    unit, unit_name = _unit(found.sides)
    columns = [
        Column(key="state", title="state"),
        *(Column(key=path, title=path) for path in paths),
        Column(key="steps", title="steps", form=","),
        Column(key="tokens", title="tokens", form=","),
        loss_column(found.by, held_out=found.held_out),
        *SPEED_COLUMNS,
        Column(key="gpus", title="GPUs", form=","),
        *memory_columns(unit_name),
    ]
    rows = []
    for place, (side, called) in enumerate(zip(found.sides, names, strict=True)):
        settings = [_setting(found.differences[path][place]) for path in paths]
        sized = [None if size is None else size / unit for size in (side.memory.predicted, side.memory.measured)]
        speeds = (side.speed.predicted, side.speed.measured, side.gpus)
        cells: list[Cell] = [side.run.state, *settings, side.steps, side.tokens, found.loss(side), *speeds, *sized]
        run = Path(side.run.directory)
        line = page_asked.pasted(contents.known(run, contents.PLAN), contents.known(run, contents.SPEC))
        rows.append(Row(name=called, cells=cells, line=line, note=_note(side)))
    return columns, rows


def loss_column(by: Basis, *, held_out: bool) -> Column:
    """The column of losses; the lowest is marked when the runs can be ranked."""
    hint = "the last one on held-out samples" if held_out else results.MEAN
    return Column(key="loss", title="loss", form=".4f", best=None if by.kind is None else "least", hint=hint)


SPEED_COLUMNS = (
    Column(key="predicted_speed", title="tokens/s a GPU, predicted", form=",.0f"),
    Column(key="speed", title="tokens/s a GPU", form=",.0f", best="most", hint="median of the second half"),
)


def memory_columns(unit: str) -> Iterator[Column]:
    """The columns of memory, predicted and measured."""
    yield Column(key="predicted_memory", title=f"memory, predicted, {unit}", form=",.2f")
    yield Column(key="memory", title=f"memory, {unit}", form=",.2f", best="least", hint="allocated on the worst rank")


def _unit(sides: Sequence[Side]) -> tuple[int, str]:
    return unit_for(max((size for side in sides for size in side.memory.known), default=0))


def _note(side: Side) -> str:
    reason = f": {side.run.reason}" if side.run.reason else ""
    return f"{side.run.state}{reason}; in {side.run.directory}"


def _setting(value: object) -> Cell:
    """A setting as typed, with secrets hidden; numbers stay numbers."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if value is None or isinstance(value, int | float) else secret.redacted(str(value))


def _bars(sides: Sequence[Side], names: Sequence[str]) -> Iterator[Chart | Html]:
    unit, unit_name = _unit(sides)
    sizes, speeds = [side.memory for side in sides], [side.speed for side in sides]
    memory = _chart(f"allocated peak of the worst rank, {unit_name}", sizes, names, unit, gib)
    found = [*memory, *_chart("tokens a second and GPU", speeds, names, 1, rounded)]
    yield from found
    if not found:
        yield tag("p", "Nothing was predicted or measured.", class_="missing")


def _chart(
    title: str, pairs: Sequence[Pair[Any]], names: Sequence[str], unit: int, form: Callable[[Any], str]
) -> Iterator[Chart]:
    named = dict(zip(names, pairs, strict=True))
    pieces = [piece for name, pair in named.items() for piece in _pieces(name, pair, unit, form)]
    if not pieces:
        return
    ends = {(piece.row, piece.of): piece.hover[""] for piece in pieces}
    numbers = ([name, *pair.texts(form), _off(pair)] for name, pair in named.items())
    yield Chart(
        title=title,
        spec=bars(pieces, _COLOURS, title=title, top=1.3 * max(piece.end for piece in pieces), ends=ends),
        said=f"{title}, predicted and measured for each of {len(names)} runs; the numbers are below",
        numbers=html.table(["run", "predicted", "measured", "measured against predicted"], numbers),
    )


def _pieces(name: str, pair: Pair[Any], unit: int, form: Callable[[Any], str]) -> Iterator[Segment]:
    for kind, value in zip(_COLOURS, (pair.predicted, pair.measured), strict=True):
        if value is not None:
            hover = {"": form(value), "measured against predicted": _off(pair)}
            yield Segment(row=name, of=kind, name=kind, start=0, end=float(f"{value / unit:.6g}"), hover=hover)


def _off(pair: Pair[Any]) -> str:
    return "-" if pair.share is None else f"{100 * (pair.share - 1):+.1f}%"
