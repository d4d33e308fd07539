"""A table for a page that sorts by any column and filters by expressions such as ``lr>=1e-4 state=failed``.

It is plain HTML, so that it can be printed. Other parts of a page may restrict its rows, and are told which are shown
(``table.js``).
"""

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from launcher.base.frozen import dataclass
from launcher.charts.html import Html, joined, tag

type Cell = str | float | None
"""The value of a cell; None if it is not known, or not yet."""

PARTS = ("table.js", "table.css")  # The script that sorts and filters the tables of a page, and their style.


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column."""

    key: str  # Its name in a filter, without spaces.
    title: str  # Its heading.
    form: str = ""  # The format specification of its numbers; the empty one writes all digits.
    hint: str | None = None  # Its tooltip.
    best: Literal["least", "most"] | None = None  # Which of its numbers is highlighted.


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row."""

    name: str  # The text of its first cell, unique in the table.
    cells: Sequence[Cell]  # One per column.
    line: str | None = None  # A command line to copy.
    note: str | None = None  # A note next to that line.


def table(identity: str, caption: str, heading: str, columns: Sequence[Column], rows: Sequence[Row]) -> Html:
    """A table with its filter; names under ``heading`` come first. The page must include :data:`PARTS` once."""
    wordy = [any(isinstance(row.cells[place], str) for row in rows) for place in range(len(columns))]
    heads = tag("tr", *map(_head, (Column(key=heading, title=heading), *columns), (True, *wordy)))
    bests = [_best(column, [row.cells[place] for row in rows]) for place, column in enumerate(columns)]
    body = tag("tbody", *(_row(row, columns, bests) for row in rows))
    grid = tag("table", tag("caption", caption), tag("thead", heads), body)
    # A long or wide table scrolls in its own box, which the keyboard can focus.
    box = tag("div", grid, class_="scrolled", tabindex="0", role="group", aria_label=caption)
    copy = tag("button", "copy", type="button")
    chosen = tag("div", tag("p", class_="note"), tag("pre", tabindex="0"), copy, class_="chosen", hidden=True)
    return tag("div", _filter(identity, columns, rows), box, chosen, class_="sorted", id=identity)


def _filter(identity: str, columns: Sequence[Column], rows: Sequence[Row]) -> Html:
    entry = tag("input", type="search", spellcheck="false", autocomplete="off", aria_describedby=f"{identity}-how")
    how = tag("span", *_example(columns, rows), id=f"{identity}-how", class_="note")
    return tag("p", tag("label", "filter ", entry), " ", tag("output", aria_live="polite"), " ", how, class_="filter")


def _example(columns: Sequence[Column], rows: Sequence[Row]) -> Iterator[object]:
    yield "words in a row, or a column and a value: "
    known = ((column, row.cells[at]) for at, column in enumerate(columns) for row in rows)
    found = [(column, cell) for column, cell in known if cell is not None]
    numbers = [f"{column.key}<{format(cell, column.form)}" for column, cell in found if column.best and cell != ""]
    texts = [f"{column.key}={cell}" for column, cell in found if isinstance(cell, str) and " " not in cell]
    yield from (joined(tag("code", word), " ") for word in (*numbers[:1], *texts[:1]))


def _head(column: Column, wordy: bool) -> Html:
    button, look = tag("button", column.title, type="button"), "word" if wordy else None
    return tag("th", button, scope="col", aria_sort="none", data_key=column.key, title=column.hint, class_=look)


def _best(column: Column, cells: Sequence[Cell]) -> float | None:
    numbers = {cell for cell in cells if isinstance(cell, int | float) and math.isfinite(cell)}
    if column.best is None or len(numbers) < 2:
        return None
    return min(numbers) if column.best == "least" else max(numbers)


def _row(row: Row, columns: Sequence[Column], bests: Sequence[float | None]) -> Html:
    name = tag("th", tag("button", row.name, type="button"), scope="row")
    cells = map(_cell, row.cells, columns, bests)
    return tag("tr", name, *cells, data_name=row.name, data_line=row.line, data_note=row.note)


def _cell(cell: Cell, column: Column, best: float | None) -> Html:
    if cell is None:
        return tag("td", "-")
    if isinstance(cell, str):
        return tag("td", cell, class_="word")
    shown = format(cell, column.form)
    value = None if shown == repr(cell) else repr(cell)
    return tag("td", tag("strong", shown) if cell == best else shown, data_value=value)
