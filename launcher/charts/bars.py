"""Horizontal bars made of pieces: piles of memory, parts of a step, passes of a pipeline, the life of a run.

Every piece holds its name or number where it has room for it, so that it is told without its colour, too, and shows
what it is under the pointer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.charts.library import LIMIT

LEAST_WIDTH = 960
"""Pixels of a chart with names beside its bars and figures behind them; a narrower window scrolls it (``page.js``)."""

_LETTER = 6.4
"""Pixels of a letter of a label inside of a piece: 0.6 em, which the digits of a sans serif font take."""
_ROW, _PAIR, _AROUND = 30, 50, 20
"""Pixels of a row, of one with two bars, and of what is around them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of a bar.

    Attributes:
        row: The bar's name at the axis.
        of: Which of the row's bars it belongs to, where a row has several; they are drawn in the order they come.
        name: A key of the colours.
        start: Where it begins, in the axis' unit.
        end: Where it ends.
        label: Inside of it, where there is room.
        hover: What the pointer shows, with readable keys.
    """

    row: str
    of: str = ""
    name: str
    start: float
    end: float
    label: str = ""
    hover: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A span beside a bar with a point in it: a figure with its error band."""

    row: str
    low: float
    middle: float
    high: float
    said: str


def bars(
    pieces: Sequence[Piece],
    colours: Mapping[str, str],
    *,
    title: str,
    top: float,
    start: float = 0,
    ends: Mapping[tuple[str, str], str] | None = None,
    limit: tuple[float, str] | None = None,
    mark: Mark | None = None,
    labels: str | None = None,
    ticks: Sequence[float] | None = None,
) -> dict[str, Any]:
    """A chart of bars.

    Args:
        pieces: All of them.
        colours: Of the pieces' names, in the order of the legend.
        title: Of the axis along the bars, with its unit.
        top: Where that axis ends; a row's end label needs room.
        start: Where it begins.
        ends: Texts behind the bars, by row and ``of``.
        limit: A line across all bars, and its name.
        mark: A figure with its error band.
        labels: A Vega expression for the numbers at the axis, of ``datum.value``.
        ticks: Where these numbers stand; None leaves it to the library.
    """
    several = len({piece.of for piece in pieces}) > 1
    rows = list(dict.fromkeys(piece.row for piece in pieces))
    across = _across(several=several)
    shown = [{**_values(piece, top - start), "_ink": _ink(colours[piece.name])} for piece in pieces]
    layers = [_stretches(shown, colours, across, _along(title, start, top, labels, ticks))]
    if any(row["_label"] for row in shown):
        layers.append(_inside([row for row in shown if row["_label"]], across))
    if ends:
        layers.append(_behind(pieces, ends, across))
    if limit is not None:
        layers += _line(*limit)
    if mark is not None:
        layers += _band(mark)
    height = (_PAIR if several else _ROW) * len(rows) + _AROUND
    return {"width": "container", "height": height, "usermeta": {"least": LEAST_WIDTH}, "layer": layers}


def _across(*, several: bool) -> dict[str, Any]:
    axis = {"domain": False, "ticks": False, "labelLimit": 260, "grid": False}
    channels: dict[str, Any] = {"y": {"field": "row", "type": "nominal", "sort": None, "title": None, "axis": axis}}
    if several:
        channels["yOffset"] = {"field": "of", "type": "nominal", "sort": None}
    return channels


def _along(title: str, start: float, top: float, labels: str | None, ticks: Sequence[float] | None) -> dict[str, Any]:
    axis: dict[str, Any] = {} if labels is None else {"labelExpr": labels}
    axis |= {} if ticks is None else {"values": list(ticks)}
    scale: dict[str, Any] = {"domain": [start, top], "nice": False, "zero": False}
    return {"field": "_from", "type": "quantitative", "title": title, "axis": axis, "scale": scale}


def _values(piece: Piece, width: float) -> dict[str, Any]:
    return {
        "row": piece.row,
        "of": piece.of,
        "name": piece.name,
        "_from": piece.start,
        "_to": piece.end,
        "_middle": (piece.start + piece.end) / 2,
        "_label": piece.label,
        "_room": (piece.end - piece.start) / width if width else 0,
        **piece.hover,
    }


def _stretches(
    values: Sequence[Mapping[str, Any]], colours: Mapping[str, str], across: Mapping[str, Any], along: Mapping[str, Any]
) -> dict[str, Any]:
    plain = ("row", "of", "name", "_from", "_to", "_middle", "_label", "_room", "_ink")
    hover = dict.fromkeys(key for row in values for key in row if key not in plain)
    used = {row["name"] for row in values}
    legend = {"orient": "top", "symbolType": "square", "columns": 7} if len(used) > 1 else None
    known = {name: colour for name, colour in colours.items() if name in used}
    scale = {"domain": list(known), "range": list(known.values())}
    return {
        # What a piece has not is empty, which the page leaves out of its tooltip.
        "data": {"values": [{**dict.fromkeys(hover, ""), **row} for row in values]},
        "mark": {"type": "bar", "clip": True},
        "encoding": {
            **across,
            "x": along,
            "x2": {"field": "_to"},
            "color": {"field": "name", "type": "nominal", "title": None, "scale": scale, "legend": legend},
            "tooltip": [{"field": key, "type": "nominal"} for key in hover],
        },
    }


def _inside(values: Sequence[Mapping[str, Any]], across: Mapping[str, Any]) -> dict[str, Any]:
    shown = [{key: row[key] for key in ("row", "of", "_middle", "_label", "_room", "_ink")} for row in values]
    has_room = f"datum._room * width >= {_LETTER} * (length(datum._label) + 1)"
    return {
        "data": {"values": shown},
        "mark": {"type": "text", "fontSize": 10.5, "tooltip": None},
        "encoding": {
            **across,
            "x": {"field": "_middle", "type": "quantitative"},
            "text": {"condition": {"test": has_room, "field": "_label", "type": "nominal"}, "value": ""},
            "color": {"field": "_ink", "type": "nominal", "scale": None},
        },
    }


def _ink(colour: str) -> str:
    """Black or white, whichever reads better on a colour: its luminance by ITU-R BT.601 is below the middle or not."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#ffffff" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else "#1d1f23"


def _behind(pieces: Sequence[Piece], ends: Mapping[tuple[str, str], str], across: Mapping[str, Any]) -> dict[str, Any]:
    reach: dict[tuple[str, str], float] = {}
    for piece in pieces:
        key = (piece.row, piece.of)
        reach[key] = max(reach.get(key, piece.end), piece.end)
    values = [
        {"row": row, "of": of, "_to": reach[row, of], "said": said}
        for (row, of), said in ends.items()
        if (row, of) in reach
    ]
    return {
        "data": {"values": values},
        "mark": {"type": "text", "align": "left", "dx": 5, "fontSize": 11},
        "encoding": {
            **across,
            "x": {"field": "_to", "type": "quantitative"},
            "text": {"field": "said", "type": "nominal"},
        },
    }


def _line(place: float, said: str) -> list[dict[str, Any]]:
    x = {"datum": place, "type": "quantitative"}
    rule = {"type": "rule", "color": LIMIT, "strokeDash": [6, 3], "strokeWidth": 2}
    text = {
        "type": "text",
        "color": LIMIT,
        "fontWeight": "bold",
        "align": "right",
        "baseline": "top",
        "dx": -5,
        "dy": 2,
    }
    one: dict[str, Any] = {"data": {"values": [{"said": said}]}}
    return [
        {**one, "mark": rule, "encoding": {"x": x}},
        {**one, "mark": text, "encoding": {"x": x, "y": {"value": 0}, "text": {"field": "said", "type": "nominal"}}},
    ]


def _band(mark: Mark) -> list[dict[str, Any]]:
    y = {"field": "row", "type": "nominal", "sort": None, "title": None}
    data = {
        "values": [{"row": mark.row, "low": mark.low, "_middle": mark.middle, "high": mark.high, "said": mark.said}]
    }
    shown = {"tooltip": [{"field": "said", "type": "nominal", "title": "needed"}]}
    low, middle = ({"field": name, "type": "quantitative"} for name in ("low", "_middle"))
    rule = {"type": "rule", "strokeWidth": 2, "yOffset": 13}
    point = {"type": "point", "shape": "diamond", "size": 60, "filled": True, "yOffset": 13}
    return [
        {"data": data, "mark": rule, "encoding": {"y": y, "x": low, "x2": {"field": "high"}, **shown}},
        {"data": data, "mark": point, "encoding": {"y": y, "x": middle, **shown}},
    ]
