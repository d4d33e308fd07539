"""``launch plan --plot FILE``: speed against memory of the layouts found, with the frontier labelled."""

from collections.abc import Sequence
from pathlib import Path

from launcher.base.files import JsonObject
from launcher.base.units import GIB, gib, rounded
from launcher.charts.bars import line
from launcher.charts.html import Cell, Html, joined, table
from launcher.charts.library import CATEGORIES, nominal, quantitative
from launcher.charts.page import Chart, Section, page, write_figure
from launcher.planner import wording
from launcher.planner.frontier import Frontier
from launcher.planner.layouts import Layout

_SHAPES = ("circle", "square", "triangle-up", "triangle-down", "diamond", "cross", "triangle-right")
"""One for each engine: a layout's engine shows in its shape as well as its colour."""

_MEMORY, _SPEED = "memory, GiB", "tokens/s a GPU"
_X = quantitative(_MEMORY, title="memory needed on the fullest rank, GiB")
_Y = quantitative(_SPEED, title="tokens/s a GPU, predicted")


def write(path: Path, found: Frontier) -> None:
    """Write a chart of layouts with known speeds to a file, by :func:`~launcher.charts.page.write_figure`."""
    title, drawn = _title(found), chart(found)
    sections = [Section(identity="layouts", title="Speed against memory", parts=[drawn, _table(found)])]
    named = [f"{number}  {_figures(each)}: {wording.layout(each.spec)}" for number, each in enumerate(found.fastest, 1)]
    said = [title, "The fastest for less memory:", *named]
    write_figure(path, said, [drawn], lambda: page(title, joined(), sections))


def chart(found: Frontier) -> Chart:
    """A point for each layout, the fastest for less memory numbered and joined."""
    fastest = [_row(each, str(number)) for number, each in enumerate(found.fastest, 1)]
    others = [_row(each, "") for each in found.others]
    words = "; ".join(f"{row['number']} {row[_MEMORY]} GiB, {row[_SPEED]} tokens/s" for row in fastest)
    layers = [_steps(fastest), _points(others, fastest), _numbers(fastest), *_capacity(found)]
    return Chart(
        title="Layouts that fit",
        spec={"width": "container", "height": 420, "layer": layers},
        said=f"Speed against memory of {len(fastest) + len(others)} layouts; the fastest for less memory: {words}.",
        note="The numbered layouts are the fastest for less memory.",
    )


def _row(layout: Layout, number: str) -> JsonObject:
    memory, speed = _place(layout)
    figures = {_MEMORY: round(memory, 2), _SPEED: float(f"{speed:.5g}")}
    return {**figures, "engine": wording.engine(layout.spec), "layout": wording.layout(layout.spec), "number": number}


def _place(layout: Layout) -> tuple[float, float]:
    speed = layout.speed
    assert speed is not None, "a figure of speeds that are not known"
    return (layout.verdict.used_bytes or 0) / GIB, speed.tokens_per_second_per_gpu


def _points(others: Sequence[JsonObject], fastest: Sequence[JsonObject]) -> JsonObject:
    engines = list(dict.fromkeys(row["engine"] for row in (*fastest, *others)))
    looks = {}
    for channel, values in (("color", CATEGORIES), ("shape", _SHAPES)):
        scale = {"domain": engines, "range": [values[number % len(values)] for number in range(len(engines))]}
        looks[channel] = nominal("engine", title="engine", scale=scale)
    return {
        "data": {"values": [*others, *fastest]},
        "mark": {"type": "point", "filled": True, "opacity": 0.85},
        "encoding": {
            "x": _X,
            "y": _Y,
            **looks,
            "size": {"condition": {"test": "datum.number != ''", "value": 110}, "value": 40},
            "tooltip": [nominal(name) for name in ("layout", "engine", _SPEED, _MEMORY)],
        },
    }


def _steps(fastest: Sequence[JsonObject]) -> JsonObject:
    mark = {"type": "line", "interpolate": "step-before", "strokeWidth": 1.2, "color": CATEGORIES[-1]}
    encoding = {"x": _X, "y": _Y, "order": quantitative("number")}
    return {"data": {"values": list(fastest)}, "mark": mark, "encoding": encoding}


def _numbers(fastest: Sequence[JsonObject]) -> JsonObject:
    mark = {"type": "text", "align": "right", "dx": -7, "dy": -7, "fontWeight": "bold"}
    encoding = {"x": _X, "y": _Y, "text": nominal("number")}
    return {"data": {"values": list(fastest)}, "mark": mark, "encoding": encoding}


def _capacity(found: Frontier) -> list[JsonObject]:
    capacity = found.fastest[0].verdict.capacity_bytes
    return [] if capacity is None else line(capacity / GIB, f"capacity {gib(capacity)}", below=4)


def _table(found: Frontier) -> Html:
    numbered = enumerate(found.fastest, 1)
    rows = [(number, _figures(each), Cell(wording.layout(each.spec), wide=True)) for number, each in numbered]
    return table(["", "speed and memory", "layout"], rows, caption="the fastest for less memory")


def _figures(layout: Layout) -> str:
    memory, speed = _place(layout)
    return f"{rounded(speed)} tokens/s, {memory:.1f} GiB"


def _title(found: Frontier) -> str:
    spec = found.fastest[0].spec
    return (
        f"{spec.model.name}, {spec.gpus} x {spec.hardware.title}: layouts that fit, of"
        f" {spec.global_batch_size:,} sequences of {spec.sequence_length:,} tokens a step"
    )
