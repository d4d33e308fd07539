"""Charts of stacked horizontal bars: piles of memory, parts of a step, passes of a pipeline, the life of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import field

from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.charts.library import LIMIT, coloured, nominal, quantitative

_LEAST_WIDTH = 960
"""Least width in pixels of a chart with names before its bars, figures after them; a narrower window scrolls it."""

_LETTER = 6.4  # Pixels per character of a label inside a piece: 0.6 em, the width of a digit in a sans serif font.
_ROW, _PAIR, _AROUND = 30, 50, 20  # Height in pixels of a row, of a row with two bars, and of the space around them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment of a bar."""

    row: str  # The bar's name at the axis.
    # Which of the row's bars it belongs to, if there are several; drawn in order of appearance.
    of: str = ""
    name: str  # A key of the colours.
    start: float  # Where it begins, in the axis' unit.
    end: float  # Where it ends.
    label: str = ""  # Text inside it, if there is room.
    hover: Mapping[str, str] = field(default_factory=dict)  # Its tooltip, with readable keys.


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A figure with its error band, drawn next to a bar."""

    row: str
    low: float
    middle: float
    high: float
    said: str


def bars(
    pieces: Sequence[Segment],
    colours: Mapping[str, str],  # By piece name, in legend order.
    *,
    title: str,  # Of the axis along the bars, with its unit.
    top: float,  # Where that axis ends; a row's end label needs room.
    start: float = 0,  # Where it begins.
    ends: Mapping[tuple[str, str], str] | None = None,  # Texts after the bars, by row and ``of``.
    limit: tuple[float, str] | None = None,  # A line across all bars, and its name.
    mark: Mark | None = None,  # A figure with its error band.
    labels: str | None = None,  # A Vega expression of ``datum.value`` for the axis labels.
    ticks: Sequence[float] | None = None,  # Values with axis labels; None leaves them to the library.
) -> JsonObject:
    """The Vega-Lite specification of a bar chart."""
    several = len({piece.of for piece in pieces}) > 1
    rows = list(dict.fromkeys(piece.row for piece in pieces))
    place = {"domain": False, "ticks": False, "labelLimit": 260, "grid": False}
    across = {"y": nominal("row", sort=None, title=None, axis=place)}
    across |= {"yOffset": nominal("of", sort=None)} if several else {}
    axis = ({"labelExpr": labels} if labels else {}) | ({"values": list(ticks)} if ticks is not None else {})
    scale = {"domain": [start, top], "nice": False, "zero": False}
    shown = [{**_values(piece, top - start), "_ink": _ink(colours[piece.name])} for piece in pieces]
    layers = [_stretches(shown, colours, {**across, "x": quantitative("_from", title=title, axis=axis, scale=scale)})]
    if labelled := [row for row in shown if row["_label"]]:
        layers.append(_inside(labelled, across))
    if ends:
        layers.append(_behind(pieces, ends, across))
    layers += [*(line(*limit) if limit is not None else ()), *(_band(mark) if mark is not None else ())]
    height = (_PAIR if several else _ROW) * len(rows) + _AROUND
    return {"width": "container", "height": height, "usermeta": {"least": _LEAST_WIDTH}, "layer": layers}


def _values(piece: Segment, width: float) -> JsonObject:
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


def _stretches(values: Sequence[JsonObject], colours: Mapping[str, str], places: JsonObject) -> JsonObject:
    plain = ("row", "of", "name", "_from", "_to", "_middle", "_label", "_room", "_ink")
    hover = dict.fromkeys(key for row in values for key in row if key not in plain)
    more = {"color": coloured("name", values, colours), "tooltip": [nominal(key) for key in hover]}
    return {
        # Missing fields are empty, and the page leaves those out of the tooltip.
        "data": {"values": [{**dict.fromkeys(hover, ""), **row} for row in values]},
        "mark": {"type": "bar", "clip": True},
        "encoding": {**places, "x2": {"field": "_to"}, **more},
    }


def _inside(values: Sequence[JsonObject], across: JsonObject) -> JsonObject:
    has_room = f"datum._room * width >= {_LETTER} * (length(datum._label) + 1)"
    encoding = {
        "x": quantitative("_middle"),
        "text": {"condition": {"test": has_room, **nominal("_label")}, "value": ""},
        "color": nominal("_ink", scale=None),
    }
    shown = [{key: row[key] for key in ("row", "of", "_middle", "_label", "_room", "_ink")} for row in values]
    mark = {"type": "text", "fontSize": 10.5, "tooltip": None}
    return {"data": {"values": shown}, "mark": mark, "encoding": {**across, **encoding}}


def _ink(colour: str) -> str:
    """White on dark colours, black on others: by whether the luminance (ITU-R BT.601) is below the middle."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#ffffff" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else "#1d1f23"


def _behind(pieces: Sequence[Segment], ends: Mapping[tuple[str, str], str], across: JsonObject) -> JsonObject:
    reach: dict[tuple[str, str], float] = {}
    for piece in pieces:
        key = (piece.row, piece.of)
        reach[key] = max(reach.get(key, piece.end), piece.end)
    known = [(key, said) for key, said in ends.items() if key in reach]
    return {
        "data": {"values": [{"row": key[0], "of": key[1], "_to": reach[key], "said": said} for key, said in known]},
        "mark": {"type": "text", "align": "left", "dx": 5, "fontSize": 11},
        "encoding": {**across, "x": quantitative("_to"), "text": nominal("said")},
    }


def line(place: float, said: str, *, below: int = 2) -> list[JsonObject]:
    """A vertical line at a value of the horizontal axis, with its name ``below`` pixels under the top."""
    x = {"datum": place, "type": "quantitative"}
    one: JsonObject = {"data": {"values": [{"said": said}]}}
    rule = {"type": "rule", "color": LIMIT, "strokeDash": [6, 3], "strokeWidth": 2}
    text = {"type": "text", "color": LIMIT, "fontWeight": "bold", "align": "right", "baseline": "top", "dx": -5}
    named = {"x": x, "y": {"value": below}, "text": nominal("said")}
    return [{**one, "mark": rule, "encoding": {"x": x}}, {**one, "mark": text, "encoding": named}]


def _band(mark: Mark) -> list[JsonObject]:
    row = {"row": mark.row, "low": mark.low, "_middle": mark.middle, "high": mark.high, "said": mark.said}
    shared = {"y": nominal("row", sort=None, title=None), "tooltip": [nominal("said", title="needed")]}
    rule = {"type": "rule", "strokeWidth": 2, "yOffset": 13}
    point = {"type": "point", "shape": "diamond", "size": 60, "filled": True, "yOffset": 13}
    low = {"x": quantitative("low"), "x2": {"field": "high"}}
    return [
        {"data": {"values": [row]}, "mark": rule, "encoding": {**shared, **low}},
        {"data": {"values": [row]}, "mark": point, "encoding": {**shared, "x": quantitative("_middle")}},
    ]
