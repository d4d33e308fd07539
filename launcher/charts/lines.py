"""Curves and stacked areas over an axis that can be zoomed, with points thinned to what a screen can show."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.base.files import JsonObject
from launcher.charts.library import CATEGORIES, DASHES, LEGEND, coloured, nominal, quantitative

MOST = 2000  # Most points per curve: more than a screen's width, for zooming, but few enough for a small page.
_HEIGHT = 220  # Pixels of a chart of curves.
_BRUSH = {"name": "brush", "select": {"type": "interval", "encodings": ["x"]}}
"""The selection that ``page.js`` uses to zoom."""

_STEPS: JsonObject = {"axis": {"tickMinStep": 1}, "scale": {"zero": False, "nice": False}}
"""An axis of whole numbers that begins at the first value."""

_FEW = 40  # Up to this many steps, points mark each step of an area chart.


def curves(
    rows: Sequence[Mapping[str, Any]],  # The points, with readable keys, all of which the tooltip shows.
    *,
    x: str,  # The field of the horizontal axis, also its title.
    y: str,  # The field of the vertical axis.
    title: str,  # The title of the vertical axis, with its unit.
    series: str | None = None,  # The field with one line per value.
    names: Sequence[str] = (),  # All its values, also in other charts, so that a line looks the same in all of them.
) -> JsonObject:
    """A chart of lines that differ in colour and dashes; the pointer shows the row of the nearest point."""
    up = quantitative(y, title=title, scale={"type": "linear", "zero": False})
    axes = {"x": quantitative(x, title=x, **_STEPS), "y": up}
    named = {} if series is None else _told_apart([*names, *(row[series] for row in rows)], series)
    mark = {"type": "line", "clip": True, "strokeWidth": 1.6}
    line = {"mark": mark, "encoding": {**axes, **named}, "params": [_BRUSH]}
    pointed = _pointed(axes | ({"color": named["color"]} if named else {}))
    return {"data": {"values": list(rows)}, "width": "container", "height": _HEIGHT, "layer": [line, pointed]}


def _told_apart(values: Sequence[str], field: str) -> JsonObject:
    """The colour and dash channels that distinguish lines, with one legend for both."""
    names = list(dict.fromkeys(values))
    colours = [CATEGORIES[number % len(CATEGORIES)] for number in range(len(names))]
    # Names with the same colour get different dashes.
    dashes = [list(DASHES[(number + number // len(CATEGORIES)) % len(DASHES)]) for number in range(len(names))]
    legend = {"orient": "top", "symbolType": "stroke", "symbolSize": 400, "columns": 6}
    channel = nominal(field, title=None, sort=None, legend=legend)
    looks: dict[str, Sequence[object]] = {"color": colours, "strokeDash": dashes}
    return {name: {**channel, "scale": {"domain": names, "range": look}} for name, look in looks.items()}


def _pointed(encoding: Mapping[str, Any]) -> JsonObject:
    """A layer of points that are invisible until the pointer is nearest, and then show their whole row."""
    # With ``nearest`` Vega-Lite 6 shows ``undefined`` for names in tooltip channels, so the tooltip shows the data.
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
    """Piles stacked over steps in the colours' order, for one rank at a time, chosen in a list below the chart.

    A row has ``step``, ``rank``, ``pile``, ``bytes`` in the axis' unit, ``size`` as text and ``phase``.
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
    """At most ``most`` (8 or more) of the points, in order: the least and the greatest value of each bin.

    The first and the last point are kept, and each bin's first value that is not finite, which shows that something
    went wrong.
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
    """The indices of the values that :func:`thinned` keeps."""
    return [int(place) for place, _ in thinned([(float(place), value) for place, value in enumerate(values)], most)]


def evenly[T](values: Sequence[T], most: int) -> list[T]:
    """At most ``most`` of the values, evenly spaced, including the last one."""
    count = min(most, len(values))
    return [values[(number + 1) * len(values) // count - 1] for number in range(count)]
