"""Memory and speed of several runs, predicted beside measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from launcher.base.units import GIB, gib, rounded
from launcher.charts import html
from launcher.charts.html import Html, tag
from launcher.charts.look import LEAST_WIDTH
from launcher.charts.page import Chart
from launcher.views.comparison import Side
from launcher.views.page.many_points import unit_of

_STEP = 18
"""Pixels for a bar."""

_COLOURS = ("#b3d4ea", "#0072b2")
"""Predicted and measured: one hue, told apart by lightness."""

_PREDICTED, _MEASURED = "predicted", "measured"


def charts(sides: Sequence[Side], names: Sequence[str]) -> Iterator[Chart | Html]:
    """A chart of memory and one of speed, each where any run has a figure."""
    sizes = [size for side in sides for size in (side.predicted_bytes, side.peak_bytes) if size is not None]
    unit = unit_of(sizes)
    name = "GiB" if unit == GIB else "MiB"
    found = [
        _chart(
            f"allocated peak of the worst rank, {name}",
            [_pair(side.predicted_bytes, side.peak_bytes) for side in sides],
            names,
            unit,
            lambda size: gib(round(size)),
        ),
        _chart(
            "tokens a second and GPU",
            [_pair(side.predicted_speed, side.speed_per_gpu) for side in sides],
            names,
            1,
            rounded,
        ),
    ]
    yield from (chart for chart in found if chart is not None)
    if not any(found):
        yield tag("p", "Nothing was predicted or measured.", class_="missing")


def _pair(predicted: float | None, measured: float | None) -> dict[str, float | None]:
    return {_PREDICTED: predicted, _MEASURED: measured}


def _chart(
    title: str,
    pairs: Sequence[dict[str, float | None]],
    names: Sequence[str],
    unit: int,
    said: Callable[[float], str],
) -> Chart | None:
    """Two bars a run, the predicted one pale, with the figures beside them."""
    rows: list[dict[str, Any]] = []
    for name, pair in zip(names, pairs, strict=True):
        for kind, value in pair.items():
            if value is not None:
                rows.append({
                    "run": name,
                    "kind": kind,
                    "value": float(f"{value / unit:.6g}"),
                    "shown": said(value),
                    "against": _against(pair),
                })  # fmt: skip
    if not rows:
        return None
    return Chart(
        title=title,
        spec=_spec(title, rows, names),
        said=f"{title}, predicted and measured for each of {len(names)} runs; the numbers are below",
        numbers=html.table(
            ["run", "predicted", "measured", "measured against predicted"], _numbers(names, pairs, said)
        ),
    )


def _spec(title: str, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    along = {"field": "value", "type": "quantitative", "title": title, "scale": {"zero": True}}
    runs = {"field": "run", "type": "nominal", "title": None, "sort": list(dict.fromkeys(names))}
    kinds = {"field": "kind", "type": "nominal", "title": None, "sort": [_PREDICTED, _MEASURED]}
    scale = {"domain": [_PREDICTED, _MEASURED]}
    look = {**kinds, "scale": {**scale, "range": list(_COLOURS)}, "legend": {"orient": "top"}}
    shown = [{"field": "run"}, {"field": "kind"}, {"field": "shown", "title": title}]
    shown.append({"field": "against", "title": "measured against predicted"})
    bar = {"type": "bar", "stroke": _COLOURS[1], "strokeWidth": 1.2}
    text = {"type": "text", "align": "left", "dx": 4}
    return {
        "data": {"values": list(rows)},
        "width": "container",
        "usermeta": {"least": LEAST_WIDTH},
        "height": 2 * _STEP * len(names) + _STEP,
        "encoding": {"y": runs, "yOffset": {**kinds, "scale": scale}},
        "layer": [
            {"mark": bar, "encoding": {"x": along, "color": look, "tooltip": shown}},
            {"mark": text, "encoding": {"x": along, "text": {"field": "shown"}}},
        ],
    }


def _against(pair: dict[str, float | None]) -> str:
    """How far the measured figure is from the predicted one."""
    predicted, measured = pair[_PREDICTED], pair[_MEASURED]
    return "-" if not predicted or measured is None else f"{100 * (measured / predicted - 1):+.1f}%"


def _numbers(
    names: Sequence[str], pairs: Sequence[dict[str, float | None]], said: Callable[[float], str]
) -> Iterator[list[str]]:
    for name, pair in zip(names, pairs, strict=True):
        yield [name, *("-" if value is None else said(value) for value in pair.values()), _against(pair)]
