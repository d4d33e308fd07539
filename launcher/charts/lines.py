"""Curves and stacked areas over an axis that is zoomed, and their points thinned to what a screen can show."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.base.files import JsonObject
from launcher.charts.library import CATEGORIES, DASHES, LEGEND, coloured, nominal, quantitative

MOST = 2000  # Points of a curve at most: more than a screen is wide, so that it can be zoomed, and a page stays small.
_HEIGHT = 220  # Pixels of a chart of curves.
_BRUSH = {"name": "brush", "select": {"type": "interval", "encodings": ["x"]}}
"""The selection by which ``page.js`` zooms."""

_STEPS: JsonObject = {"axis": {"tickMinStep": 1}, "scale": {"zero": False, "nice": False}}
"""An axis of whole numbers that begins with the first of them."""

_FEW = 40  # Steps up to which each of an area is marked by a point.


def curves(
    rows: Sequence[Mapping[str, Any]],  # The points, with readable keys: all of them are shown.
    *,
    x: str,  # The field of the horizontal axis, which is its title, too.
    y: str,  # The field of the vertical one.
    title: str,  # Of the vertical axis, with its unit.
    series: str | None = None,  # The field whose values are a line each.
    names: Sequence[str] = (),  # All its values, also of other charts, so that a line looks the same in all of them.
) -> JsonObject:
    """One or more lines, told apart by colour and dashes; the pointer shows the row of the nearest point."""
    up = quantitative(y, title=title, scale={"type": "linear", "zero": False})
    axes = {"x": quantitative(x, title=x, **_STEPS), "y": up}
    named = {} if series is None else _told_apart([*names, *(row[series] for row in rows)], series)
    mark = {"type": "line", "clip": True, "strokeWidth": 1.6}
    line = {"mark": mark, "encoding": {**axes, **named}, "params": [_BRUSH]}
    pointed = _pointed(axes | ({"color": named["color"]} if named else {}))
    return {"data": {"values": list(rows)}, "width": "container", "height": _HEIGHT, "layer": [line, pointed]}


def _told_apart(values: Sequence[str], field: str) -> JsonObject:
    """The channels that tell lines apart, by colour and by dashes, with one legend for both."""
    names = list(dict.fromkeys(values))
    colours = [CATEGORIES[number % len(CATEGORIES)] for number in range(len(names))]
    # Names of one colour have other dashes.
    dashes = [list(DASHES[(number + number // len(CATEGORIES)) % len(DASHES)]) for number in range(len(names))]
    legend = {"orient": "top", "symbolType": "stroke", "symbolSize": 400, "columns": 6}
    channel = nominal(field, title=None, sort=None, legend=legend)
    looks: dict[str, Sequence[object]] = {"color": colours, "strokeDash": dashes}
    return {name: {**channel, "scale": {"domain": names, "range": look}} for name, look in looks.items()}


def _pointed(encoding: Mapping[str, Any]) -> JsonObject:
    """Points that are unseen until the pointer is nearest to them, and then show their whole row."""
    # Vega-Lite 6 has ``undefined`` for words in a tooltip's channels beside ``nearest``.
    nearest = {"type": "point", "on": "pointerover", "nearest": True, "clear": "pointerout"}
    opacity = {"condition": {"param": "nearest", "empty": False, "value": 1}, "value": 0}
    return {
        "mark": {"type": "point", "size": 60, "clip": True, "tooltip": {"content": "data"}},
        "encoding": {**encoding, "opacity": opacity},
        "params": [{"name": "nearest", "select": nearest}],
    }


def areas(
    rows: Sequence[Mapping[str, Any]], colours: Mapping[str, str], *, title: str, ranks: Sequence[str]
) -> JsonObject:
    """Piles stacked over steps from the first colour's, of one rank at a time, which a list below the chart chooses.

    A row has ``step``, ``rank``, ``pile``, ``bytes`` in the axis' unit, ``size`` in words and ``phase``.
    """
    order = {name: number for number, name in enumerate(colours)}
    encoding = {
        "x": quantitative("step", **_STEPS),
        "y": quantitative("bytes", title=title, stack="zero"),
        "color": coloured("pile", rows, colours) | {"legend": LEGEND},
        "order": quantitative("order"),
        "tooltip": [nominal(name) for name in ("step", "pile", "size", "phase", "rank")],
    }
    mark = {"type": "area", "clip": True, "line": {"strokeWidth": 0.7}}
    layers: list[JsonObject] = [{"mark": mark, "encoding": encoding, "params": [_BRUSH]}]
    if len({row["step"] for row in rows}) <= _FEW:
        layers.append({"mark": {"type": "point", "clip": True, "size": 25}, "encoding": encoding})
    chosen = {"name": "shown", "value": ranks[0], "bind": {"input": "select", "options": list(ranks), "name": "rank "}}
    return {
        "data": {"values": [{**row, "order": order[row["pile"]]} for row in rows if row["pile"] in order]},
        "params": [chosen] if len(ranks) > 1 else [],
        "transform": [{"filter": "datum.rank == shown"}] if len(ranks) > 1 else [],
        "width": "container",
        "height": _HEIGHT + 40,
        "layer": layers,
    }


def thinned(points: Sequence[tuple[float, float]], most: int = MOST) -> list[tuple[float, float]]:
    """At most ``most`` (8 or more) of points by their place: of each bin of them the least and the greatest value.

    The first and the last point stay, and of each bin the first value that is no number, which says that something went
    wrong.
    """
    if len(points) <= most:
        return list(points)
    bins = (most - 2) // 3
    inner = range(1, len(points) - 1)
    chosen = {0, len(points) - 1}
    for number in range(bins):
        here = inner[number * len(inner) // bins : (number + 1) * len(inner) // bins]
        finite = [at for at in here if math.isfinite(points[at][1])]
        if finite:
            chosen.add(min(finite, key=lambda at: points[at][1]))
            chosen.add(max(finite, key=lambda at: points[at][1]))
        if len(finite) < len(here):
            chosen.add(next(at for at in here if not math.isfinite(points[at][1])))
    return [points[at] for at in sorted(chosen)]


def thinned_places(values: Sequence[float], most: int = MOST) -> list[int]:
    """The places of the values that :func:`thinned` keeps."""
    return [int(place) for place, _ in thinned([(float(place), value) for place, value in enumerate(values)], most)]


def evenly[T](values: Sequence[T], most: int) -> list[T]:
    """At most ``most`` of many values, evenly, with the last one."""
    count = min(most, len(values))
    return [values[(number + 1) * len(values) // count - 1] for number in range(count)]
