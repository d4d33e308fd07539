"""Parallel coordinates: an axis for each varied setting and each result, a line for each point.

Dragging on an axis keeps the points that cross the marked range; ranges on several axes combine. The chart is a plain
Vega specification, since Vega-Lite does not support a separate brush per axis. ``parallel.js`` links it to a table
(``launcher.charts.table``), whose filter does the same from the keyboard.
"""

import json
from collections.abc import Sequence

from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass

type Value = str | float | None

PARTS = ("parallel.js",)  # The script that links a chart to a table.
_HEIGHT = 300
_FEW = 8  # Up to this many different numbers are evenly spaced on an axis and labelled as typed.
_DECADES = 100  # An axis is logarithmic if its largest number is at least this many times its smallest.
_COLOURS = ("#0072b2", "#cc79a7", "#e69f00")
"""From the lowest to the highest value; by Okabe and Ito (2008), like those of ``launcher.charts.library``."""

_GREY = "#808080"
_HALF = 9  # Half the width, in pixels, of the strip along an axis that takes drags.
_LABEL = 110  # Longest label, in pixels.
_WIDTH = "isFinite(containerSize()[0]) ? containerSize()[0] : 800"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis and its values."""

    title: str  # Text above it.
    values: Sequence[Value]  # One per point; None leaves a gap in the point's line.
    result: bool = False  # True for a result: always on a numeric scale, however few values there are.


def parallel(
    table: str,  # The id of the table whose rows are the points.
    names: Sequence[str],  # Names of the points.
    axes: Sequence[Axis],  # From left to right, two or more.
    *,
    coloured: int,  # The index of the axis whose numbers colour the lines.
    best: str | None = None,  # The point whose line is bold.
) -> JsonObject:
    """The Vega specification of a parallel coordinates chart."""
    scales = [_scale(place, axis) for place, axis in enumerate(axes)]
    columns = [
        [number_of(value) if _is_spread(axis) else None if value is None else str(value) for value in axis.values]
        for axis in axes
    ]
    points = [
        {"name": name, **{f"k{place}": value for place, value in enumerate(values)}}
        for name, *values in zip(names, *columns, strict=True)
    ]
    low, high = _ends([value for value in axes[coloured].values if isinstance(value, int | float)])
    domain = [low, (low + high) / 2, high]
    colour = {"name": "colour", "type": "linear", "domain": domain, "range": list(_COLOURS)}
    places = {"name": "along", "type": "point", "domain": [*range(len(axes))], "range": "width", "padding": 0.35}
    embedded = {"mode": "vega", "renderer": "canvas"}
    return {
        "usermeta": {"table": table, "least": _LABEL * len(axes), "embedOptions": embedded},
        "height": _HEIGHT,
        "padding": {"left": 5, "right": 5, "top": 5, "bottom": 5},
        "autosize": {"type": "fit-x", "contains": "padding"},
        "signals": [
            {"name": "width", "init": _WIDTH, "on": [{"events": "window:resize", "update": _WIDTH}]},
            {"name": "kept", "value": None},
            *(_brush(place) for place in range(len(axes))),
        ],
        "data": [{"name": "points", "values": points, "transform": _transforms(len(axes))}],
        "scales": [places, colour, *scales],
        "axes": [_drawn(place, axis, len(axes)) for place, axis in enumerate(axes)],
        "marks": [
            _lines(axes, coloured, best),
            *(mark for place, axis in enumerate(axes) for mark in _marks(place, axis)),
        ],
    }


def number_of(value: Value) -> float | None:
    """A value, or text that spells one, as a number; None if it is not one."""
    try:
        return None if value is None else float(value)
    except ValueError:
        return None


def _is_spread(axis: Axis) -> bool:
    known = [value for value in axis.values if value is not None]
    if any(number_of(value) is None for value in known):
        return False
    return axis.result or len(set(known)) > _FEW


def _scale(place: int, axis: Axis) -> JsonObject:
    scale = {"name": f"s{place}", "range": "height"}
    if not _is_spread(axis):
        known = dict.fromkeys(str(value) for value in axis.values if value is not None)
        ordered = sorted(known, key=lambda word: (number_of(word) is None, number_of(word) or 0.0))
        return {**scale, "type": "point", "domain": ordered, "padding": 0.25, "reverse": True}
    low, high = _ends([number for value in axis.values if (number := number_of(value)) is not None])
    log = low > 0 and high >= _DECADES * low
    kind: JsonObject = {"type": "log"} if log else {"type": "linear", "zero": False, "nice": True}
    return {**scale, "domain": [low, high], **kind}


def _ends(numbers: Sequence[float]) -> list[float]:
    low, high = min(numbers, default=0.0), max(numbers, default=1.0)
    return [low, high] if low < high else [low - (abs(low) or 1.0) / 10, high + (abs(high) or 1.0) / 10]


def _brush(place: int) -> JsonObject:
    """A signal with the marked range of an axis in pixels, from pointer down to its current position; null is all."""
    name, down = f"b{place}", f"@strip{place}:pointerdown"
    here = "clamp(y(), 0, height)"
    return {
        "name": name,
        "value": None,
        "on": [
            {"events": down, "update": f"[{here}, {here}]"},
            {"events": f"[{down}, window:pointerup] > window:pointermove!", "update": f"[{name}[0], {here}]"},
            {"events": f"@strip{place}:dblclick", "update": "null"},
        ],
    }


def _transforms(count: int) -> list[JsonObject]:
    inside = " && ".join(
        f"(!b{n} || abs(b{n}[0] - b{n}[1]) < 3 || (isValid(datum.k{n}) && "
        f"scale('s{n}', datum.k{n}) >= min(b{n}[0], b{n}[1]) && scale('s{n}', datum.k{n}) <= max(b{n}[0], b{n}[1])))"
        for n in range(count)
    )
    shown = "datum.marked && (!kept || kept[datum.name])"
    return [{"type": "formula", "as": "marked", "expr": inside}, {"type": "formula", "as": "shown", "expr": shown}]


def _lines(axes: Sequence[Axis], coloured: int, best: str | None) -> JsonObject:
    value, is_best = f"datum.k{coloured}", f"datum.name === {json.dumps(best)}"
    by_value = {"scale": "colour", "field": f"k{coloured}"}
    stroke = [{"test": f"!datum.shown || !isValid({value})", "value": _GREY}, by_value]
    return {
        "type": "path",
        "from": {"data": "points"},
        "encode": {
            "enter": {"tooltip": {"signal": _tooltip(axes)}, "strokeJoin": {"value": "round"}},
            "update": {
                "path": {"signal": _path(len(axes))},
                "stroke": stroke,
                "strokeWidth": {"signal": f"{is_best} ? 4 : 1.3"},
                "strokeOpacity": {"signal": f"!datum.shown ? 0.06 : {is_best} ? 1 : 0.65"},
                "strokeDash": {"signal": f"isValid({value}) ? null : [3, 3]"},
                "zindex": {"signal": f"({is_best} ? 2 : 0) + (datum.shown ? 1 : 0)"},
            },
        },
    }


def _path(count: int) -> str:
    parts = []
    for n in range(count):
        command = "'M'" if n == 0 else f"(isValid(datum.k{n - 1}) ? 'L' : 'M')"
        parts.append(f"(isValid(datum.k{n}) ? {command} + scale('along', {n}) + ',' + scale('s{n}', datum.k{n}) : '')")
    # A path needs a start, also that of a point without any value.
    return f"({' + '.join(parts)}) || 'M0,0'"


def _tooltip(axes: Sequence[Axis]) -> str:
    shown = (f"{json.dumps(axis.title)}: isValid(datum.k{n}) ? datum.k{n} : '-'" for n, axis in enumerate(axes))
    return f"{{'point': datum.name, {', '.join(shown)}}}"


def _drawn(place: int, axis: Axis, count: int) -> JsonObject:
    numbers = {"tickCount": 6} if _is_spread(axis) else {}
    return {
        "orient": "left",
        "scale": f"s{place}",
        "zindex": 1,
        "title": axis.title,
        "titleAngle": 0,
        "titleAlign": "center",
        "titleAnchor": "end",
        "titleX": 0,
        "titleY": -12,
        "titleBaseline": "bottom",
        "titleLimit": {"signal": f"0.95 * width / {count}"},
        "offset": {"scale": "along", "value": place, "mult": -1},
        "labelLimit": _LABEL,
        **numbers,
    }


def _marks(place: int, axis: Axis) -> list[JsonObject]:
    words = [5] if _is_spread(axis) else [len(str(value)) for value in axis.values if value is not None]
    across = {"x": {"scale": "along", "value": place, "offset": -_HALF}, "width": {"value": 2 * _HALF}}
    down = {"y": {"value": 0}, "height": {"signal": "height"}}
    # A drag may begin slightly beyond the end of an axis.
    reach = {"y": {"value": -_HALF}, "height": {"signal": f"height + {2 * _HALF}"}}
    room = min(_LABEL, 8 + 6.5 * max(words, default=0))  # Numbers on a scale are short.
    behind = {"x": {"scale": "along", "value": place, "offset": -room}, "width": {"value": room}}
    faded = {"fill": {"signal": "background"}, "fillOpacity": {"value": 0.7}}
    cursor = {"fill": {"value": "transparent"}, "cursor": {"value": "ns-resize"}}
    ends = {f"y{end}": {"signal": f"b{place} ? b{place}[{at}] : 0"} for end, at in (("", 0), ("2", 1))}
    look = {"fill": {"value": _GREY}, "stroke": {"value": _GREY}, "fillOpacity": {"value": 0.35}}
    seen = {"opacity": {"signal": f"b{place} ? 1 : 0"}}
    return [
        {"type": "rect", "interactive": False, "encode": {"update": {**behind, **down, **faded}}},
        {"type": "rect", "name": f"strip{place}", "encode": {"enter": cursor, "update": {**across, **reach}}},
        {"type": "rect", "interactive": False, "encode": {"enter": look, "update": {**across, **ends, **seen}}},
    ]
