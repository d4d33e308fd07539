"""Curves over an axis that is zoomed: dragging marks a range, a double click shows everything again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.charts.look import CATEGORIES, DASHES

HEIGHT = 220

BRUSH = {"name": "brush", "select": {"type": "interval", "encodings": ["x"]}}
"""The selection by which ``page.js`` zooms."""


def curves(
    rows: Sequence[Mapping[str, Any]], *, x: str, y: str, title: str, series: str | None = None, height: int = HEIGHT
) -> dict[str, Any]:
    """One or more lines, told apart by colour and dashes; the pointer shows the row of the nearest point.

    Args:
        rows: The points, with readable keys: all of them are shown.
        x: The field of the horizontal axis, which is its title, too.
        y: The field of the vertical one.
        title: Of the vertical axis, with its unit.
        series: The field whose values are a line each.
        height: In pixels.
    """
    along = {
        "field": x,
        "type": "quantitative",
        "title": x,
        "axis": {"tickMinStep": 1},
        "scale": {"zero": False, "nice": False},
    }
    up = {"field": y, "type": "quantitative", "title": title, "scale": {"type": "linear", "zero": False}}
    named = {} if series is None else told_apart(list(dict.fromkeys(row[series] for row in rows)), series)
    line = {
        "mark": {"type": "line", "clip": True, "strokeWidth": 1.6},
        "encoding": {"x": along, "y": up, **named},
        "params": [BRUSH],
    }
    pointed = _pointed({"x": along, "y": up} | ({"color": named["color"]} if named else {}))
    return {"data": {"values": list(rows)}, "width": "container", "height": height, "layer": [line, pointed]}


def told_apart(names: Sequence[str], field: str) -> dict[str, Any]:
    """The channels that tell lines apart, by colour and by dashes, with one legend for both."""
    count = range(len(names))
    colours = [CATEGORIES[number % len(CATEGORIES)] for number in count]
    dashes = [list(DASHES[number % len(DASHES)]) for number in count]
    legend = {"orient": "top", "symbolType": "stroke", "symbolSize": 400, "columns": 6}
    channel = {"field": field, "type": "nominal", "title": None, "sort": None, "legend": legend}
    return {
        "color": {**channel, "scale": {"domain": list(names), "range": colours}},
        "strokeDash": {**channel, "scale": {"domain": list(names), "range": dashes}},
    }


def _pointed(encoding: Mapping[str, Any]) -> dict[str, Any]:
    """Points that are unseen until the pointer is nearest to them.

    They show their whole row: Vega-Lite 6 has ``undefined`` for words in a tooltip's channels beside ``nearest``.
    """
    nearest = {"type": "point", "on": "pointerover", "nearest": True, "clear": "pointerout"}
    opacity = {"condition": {"param": "nearest", "empty": False, "value": 1}, "value": 0}
    return {
        "mark": {"type": "point", "size": 60, "clip": True, "tooltip": {"content": "data"}},
        "encoding": {**encoding, "opacity": opacity},
        "params": [{"name": "nearest", "select": nearest}],
    }
