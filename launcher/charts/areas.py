"""Stacked areas over steps, of one rank at a time, which a list below the chart chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.charts.lines import BRUSH, HEIGHT

_FEW = 40
"""Steps up to which each is marked by a point."""


def areas(
    rows: Sequence[Mapping[str, Any]], colours: Mapping[str, str], *, title: str, ranks: Sequence[str]
) -> dict[str, Any]:
    """A chart of piles over steps.

    Args:
        rows: With ``step``, ``rank``, ``pile``, ``bytes`` in the axis' unit, ``size`` in words and ``phase``.
        colours: Of the piles, in their order from the bottom.
        title: Of the vertical axis.
        ranks: Those that can be chosen.
    """
    used = {row["pile"] for row in rows}
    known = {name: colour for name, colour in colours.items() if name in used}
    order = {name: number for number, name in enumerate(known)}
    values = [{**row, "order": order[row["pile"]]} for row in rows if row["pile"] in order]
    scale = {"domain": list(known), "range": list(known.values())}
    legend = {"orient": "top", "symbolType": "square", "columns": 7}
    chosen = {"name": "shown", "value": ranks[0], "bind": {"input": "select", "options": list(ranks), "name": "rank "}}
    x = {"field": "step", "type": "quantitative", "axis": {"tickMinStep": 1}, "scale": {"zero": False, "nice": False}}
    few = len({row["step"] for row in rows}) <= _FEW
    tooltip = [{"field": name, "type": "nominal"} for name in ("step", "pile", "size", "phase", "rank")]
    encoding = {
        "x": x,
        "y": {"field": "bytes", "type": "quantitative", "title": title, "stack": "zero"},
        "color": {"field": "pile", "type": "nominal", "title": None, "scale": scale, "legend": legend},
        "order": {"field": "order", "type": "quantitative"},
        "tooltip": tooltip,
    }
    area = {
        "mark": {"type": "area", "clip": True, "line": {"strokeWidth": 0.7}},
        "encoding": encoding,
        "params": [BRUSH],
    }
    layers: list[dict[str, Any]] = [area]
    if few:
        layers.append({"mark": {"type": "point", "clip": True, "size": 25}, "encoding": encoding})
    return {
        "data": {"values": values},
        "params": [chosen] if len(ranks) > 1 else [],
        "transform": [{"filter": "datum.rank == shown"}] if len(ranks) > 1 else [],
        "width": "container",
        "height": HEIGHT + 40,
        "layer": layers,
    }
