"""``launch check --plot FILE``: the piles of a run, by phase and by pipeline stage, against the capacity.

Below them, where the run's speed is known, the time of a step by part and the passes of a pipeline. matplotlib is
imported where a figure is drawn and nowhere else, so planning works without it.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import files, package
from launcher.errors import ConfigError, ConfigErrors, SubmitError
from launcher.memory.breakdown import Breakdown, Column
from launcher.memory.result import MemoryEstimate, Peak
from launcher.memory.terms import PILES, Pile
from launcher.preflight import plot_gantt, plot_page, plot_time, speed_line
from launcher.preflight.assess import Assessment
from launcher.preflight.report import heading
from launcher.text.units import GIB, MIB, gib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

SUFFIXES = (".png", ".svg", ".html")

COLOURS: dict[Pile, str] = {
    "parameters": "#27496d",
    "gradients": "#4d7ea8",
    "optimizer_states": "#b5d3e7",
    "master_weights": "#7fb0d4",
    "activations": "#d9722e",
    "logits": "#f2b25c",
    "gather_buffers": "#3a8d6b",
    "reduce_buffers": "#8cc7a1",
    "temporary": "#9b6fae",
    "workspace": "#c9b3d6",
    "context": "#7d7d7d",
    "communicators": "#b3b3b3",
    "fragmentation": "#f4f4f4",
}
"""States blue, activations orange, buffers green, memory of the libraries grey."""

_CAPACITY, _INK = "#b3261e", "#222222"
_MEMORY_INCHES = 6.4
_OFF_SCALE = 8
"""A capacity of so many times the largest column is named above the axis: on a line in it no pile could be told."""
_CLIP = re.compile(rb"\bp[0-9a-f]{10}\b")
_LABELLED_COLUMNS = 8
_LABELLED_SHARE = 0.035
"""Share of the axis that a pile must have to hold its own number."""


def check_path(path: Path) -> None:
    """Refuse a figure that cannot be made, before anything is computed.

    Raises:
        ConfigErrors: The suffix names no format, or matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        rule = f"the name of a figure ends in {', '.join(SUFFIXES)}"
        raise ConfigErrors([ConfigError("--plot", str(path), rule, [f"--plot {path.with_suffix('.png')}"])])
    if find_spec("matplotlib") is None:
        rule = "a figure needs matplotlib, which is not installed for this Python"
        raise ConfigErrors([ConfigError("--plot", str(path), rule, [package.install("plot")])])


def write(path: Path, assessment: Assessment, columns: Breakdown) -> None:
    """Draw a run's memory into a PNG, an SVG or an HTML file that needs nothing beside it.

    Args:
        path: Where to; its suffix, which ``check_path`` has let through, decides the format.
        assessment: A valid run.
        columns: Its piles.

    Raises:
        SubmitError: The file cannot be written.
    """
    drawn = figure(assessment, columns)
    suffix = path.suffix.lower()
    content = saved(drawn, "png" if suffix == ".png" else "svg")
    if suffix == ".html":
        svg = content.decode()
        content = plot_page.page(assessment, columns, svg[svg.index("<svg") :]).encode()
    try:
        files.write_bytes_atomically(path, content)
    except OSError as error:
        raise SubmitError(f"--plot: {path} cannot be written: {error.strerror}") from None


def figure(assessment: Assessment, columns: Breakdown) -> Figure:
    """The figure itself: memory by phase and by pipeline stage, and below it the time of a step."""
    from matplotlib.figure import Figure

    staged = len(columns.stages) > 1
    ratios = [len(columns.phases), *([min(max(len(columns.stages), 2), 7)] if staged else [])]
    speed = assessment.speed
    passes = None if speed is None else plot_gantt.gantt(assessment.spec, speed)
    heights = [_MEMORY_INCHES]
    heights += [] if speed is None else [1.1 + 0.24 * len(plot_time.shown(speed))]
    heights += [] if passes is None else [1.5 + min(6.0, max(0.22, 0.5 - 0.02 * len(passes.rows)) * len(passes.rows))]
    drawn = Figure(figsize=(5.2 + 0.85 * sum(ratios), sum(heights)), layout="constrained")
    rooms = drawn.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    _memory(rooms[0], assessment, columns, ratios)
    if speed is not None:
        plot_time.bars(rooms[1].subplots(), speed)
    if passes is not None:
        plot_gantt.draw(rooms[2], assessment.spec, passes)
    _title(drawn, assessment)
    return drawn


def _memory(room: SubFigure, assessment: Assessment, columns: Breakdown, ratios: Sequence[int]) -> None:
    """One panel by phase, and where there are several pipeline stages one by stage."""
    panels: Sequence[Axes] = room.subplots(1, len(ratios), sharey=True, squeeze=False, width_ratios=ratios)[0]
    staged = len(ratios) > 1
    unit, name, top = _scale(assessment, columns)
    _stack(panels[0], columns.phases, [_phase_name(column, staged) for column in columns.phases], unit, top)
    panels[0].set_ylabel(f"memory of one rank, {name}")
    panels[0].set_xlabel("phase, at its peak on the worst rank")
    if staged:
        _stack(panels[1], columns.stages, [str(column.stage) for column in columns.stages], unit, top)
        panels[1].set_xlabel("pipeline stage, at its peak")
    for panel in panels:
        _capacity(panel, assessment, unit, top, labelled=panel is panels[0])
    worst = next(n for n, column in enumerate(columns.phases) if column.phase == _peak(assessment).phase)
    _needed(panels[0], assessment, worst, unit)
    _legend(room, columns.phases[worst], columns)


def saved(drawn: Figure, kind: str) -> bytes:
    """The file's content; the same run gives the same bytes, so an SVG carries no date."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type")) if kind == "svg" else None
    with rc_context({"svg.hashsalt": "launch", "svg.fonttype": "path"}):
        drawn.savefig(buffer, format=kind, dpi=150, metadata=metadata, facecolor="white")
    return _numbered(buffer.getvalue()) if kind == "svg" else buffer.getvalue()


def _numbered(svg: bytes) -> bytes:
    """Number the clip paths as they come: matplotlib names them by coordinates, whose last digits the layout varies."""
    names: dict[bytes, bytes] = {}
    return _CLIP.sub(lambda found: names.setdefault(found[0], b"p%d" % len(names)), svg)


def _scale(assessment: Assessment, columns: Breakdown) -> tuple[int, str, float]:
    """The axis: bytes of its unit, the unit's name, and where it ends, in bytes."""
    peak, capacity = _peak(assessment), assessment.verdict.capacity_bytes or 0
    outside = _outside(assessment)
    tallest = max(peak.high_bytes + outside, *(c.device_bytes for c in (*columns.phases, *columns.stages)))
    top = 1.13 * (tallest if capacity > _OFF_SCALE * tallest else max(tallest, capacity))
    return (MIB, "MiB", top) if top < GIB // 2 else (GIB, "GiB", top)


def _stack(panel: Axes, columns: Sequence[Column], names: Sequence[str], unit: int, top: float) -> None:
    crowded = len(columns) > _LABELLED_COLUMNS
    for place, column in enumerate(columns):
        below = 0
        for pile, size in column.piles.items():
            hatched: dict[str, Any] = {"hatch": "////", "edgecolor": "#a8a8a8"} if pile == "fragmentation" else {}
            panel.bar(place, size / unit, 0.72, below / unit, color=COLOURS[pile], linewidth=0, **hatched)
            if size >= _LABELLED_SHARE * top and not crowded:
                ink = "white" if _dark(COLOURS[pile]) else _INK
                text = f"{size / unit:.2f}" if unit == GIB else f"{size / unit:.1f}"
                panel.text(place, (below + size / 2) / unit, text, ha="center", va="center", fontsize=9, color=ink)
            below += size
        if not crowded:
            panel.text(place, (below + 0.008 * top) / unit, gib(below), ha="center", va="bottom", fontsize=9.5)
    step = 1 if len(columns) <= 16 else -(-len(columns) // 16)
    panel.set_xticks(range(0, len(columns), step), names[::step])
    panel.set_xlim(-0.6, len(columns) - 0.4)
    panel.set_ylim(0, top / unit)
    panel.grid(axis="y", color="#e3e3e3", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.tick_params(length=0)
    panel.spines[["top", "right", "left"]].set_visible(False)


def _capacity(panel: Axes, assessment: Assessment, unit: int, top: float, *, labelled: bool) -> None:
    capacity = assessment.verdict.capacity_bytes
    if capacity is None:
        return
    off_scale = capacity > top
    panel.axhline(min(capacity, top) / unit, color=_CAPACITY, linestyle=(0, (6, 3)), linewidth=1.8)
    if labelled:
        text = f"capacity {gib(capacity)}, far above this axis" if off_scale else f"capacity\n{gib(capacity)}"
        place = (-0.57, min(capacity, top) / unit)
        panel.annotate(
            text, place, xytext=(0, -5 if off_scale else 5), textcoords="offset points", color=_CAPACITY,
            va="top" if off_scale else "bottom", fontsize=10.5, fontweight="bold",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0},
        )  # fmt: skip


def _needed(panel: Axes, assessment: Assessment, place: int, unit: int) -> None:
    """Draw ``needed`` and its error band, on which the verdict rests, beside the column of the peak."""
    peak, outside = _peak(assessment), _outside(assessment)
    low, needed, high = ((size + outside) / unit for size in (peak.low_bytes, peak.needed_bytes, peak.high_bytes))
    panel.errorbar(
        place + 0.43, needed, yerr=[[needed - low], [high - needed]], fmt="D", color=_INK, markersize=4.5,
        capsize=3.5, linewidth=1.4,
    )  # fmt: skip


def _legend(drawn: SubFigure, worst: Column, columns: Breakdown) -> None:
    """All piles that appear, from the top of a column to its bottom, with their sizes at the peak."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown = {pile for column in (*columns.phases, *columns.stages) for pile in column.piles}
    handles: list[Patch | Line2D] = []
    for pile in (pile for pile in reversed(PILES) if pile in shown):
        hatched: dict[str, Any] = {"hatch": "////", "edgecolor": "#a8a8a8"} if pile == "fragmentation" else {}
        size = f"  {gib(worst.piles[pile])}" if pile in worst.piles else ""
        size += "\n(above needed: cached, given back when short)" if pile == "fragmentation" else ""
        handles.append(Patch(facecolor=COLOURS[pile], label=f"{pile.replace('_', ' ')}{size}", **hatched))
    marker = Line2D([], [], color=_INK, marker="D", markersize=4.5, label="needed, with its error band")
    title = f"piles, sizes in the\n{worst.phase.replace('_', ' ')} phase"
    legend = drawn.legend(
        handles=[marker, *handles], loc="outside right center", frameon=False, title=title, alignment="left",
        fontsize=10, labelspacing=0.75,
    )  # fmt: skip
    legend.get_title().set_fontweight("bold")


def _title(drawn: Figure, assessment: Assessment) -> None:
    width = int(10.5 * drawn.get_figwidth())
    sentences = (*heading(assessment), *speed_line.said(assessment))
    lines = [line for sentence in sentences for line in textwrap.wrap(sentence, width, break_on_hyphens=False)]
    drawn.suptitle("\n".join(lines), x=0.012, ha="left", fontsize=11)


def _phase_name(column: Column, staged: bool) -> str:
    name = column.phase.replace("_", "\n")
    return f"{name}\n(stage {column.stage})" if staged else name


def _dark(colour: str) -> bool:
    """True if white text reads better on a colour: its luminance by ITU-R BT.601 is below the middle."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 140


def _peak(assessment: Assessment) -> Peak:
    return _estimate(assessment).peak


def _outside(assessment: Assessment) -> int:
    return _estimate(assessment).outside_bytes


def _estimate(assessment: Assessment) -> MemoryEstimate:
    if assessment.estimate is None:
        raise AssertionError("a figure of a run that is not valid")
    return assessment.estimate
