"""``launch check --plot FILE``: the piles of a run, by phase and by pipeline stage, against the capacity.

Below them, where the run's speed is known, the time of a step by part and the passes of a pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from launcher.base.units import gib
from launcher.charts import figure
from launcher.charts.bars import Mark, Piece, bars
from launcher.charts.page import Chart
from launcher.estimate.memory.breakdown import Breakdown, Column
from launcher.estimate.memory.result import MemoryEstimate
from launcher.estimate.speed.result import SpeedEstimate
from launcher.estimate.speed.summary import name_of
from launcher.preflight.assess import Assessment
from launcher.views.check import gantt as plot_gantt
from launcher.views.check import page as plot_page
from launcher.views.check import piles, speed_line
from launcher.views.check import time as plot_time
from launcher.views.check.text import heading

_OFF_SCALE = 8
"""A capacity of so many times the largest bar is named below the chart: beside a line of it no pile could be told."""
_ROOM = 1.13
"""Of the axis behind the longest bar, for its size."""


def write(path: Path, assessment: Assessment, columns: Breakdown) -> None:
    """Draw a run's memory into a PNG, an SVG or an HTML file that needs nothing beside it.

    Args:
        path: Where to; its suffix, which ``launcher.charts.figure.check_path`` has let through, decides the format.
        assessment: A valid run.
        columns: Its piles.

    Raises:
        SubmitError: The file cannot be written.
    """
    drawn = charts(assessment, columns)
    said = (*heading(assessment), *speed_line.sentences(assessment))
    figure.write(path, said, drawn, lambda: plot_page.page(assessment, columns, drawn))


def charts(assessment: Assessment, columns: Breakdown) -> list[Chart]:
    """Memory by phase and, where there are several, by pipeline stage, and below them the time of a step."""
    found = [_by_phase(assessment, columns)]
    found += [_by_stage(assessment, columns)] if len(columns.stages) > 1 else []
    speed = assessment.speed
    if speed is not None:
        found.append(_step(speed))
        passes = plot_gantt.gantt(assessment.spec, speed)
        found += [] if passes is None else [plot_gantt.chart(assessment.spec, passes)]
    return found


def _by_phase(assessment: Assessment, columns: Breakdown) -> Chart:
    staged, estimate = len(columns.stages) > 1, _estimate(assessment)
    names = [_phase_name(column, staged=staged) for column in columns.phases]
    peak, outside = estimate.peak, estimate.outside_bytes
    worst = next(name for name, column in zip(names, columns.phases, strict=True) if column.phase == peak.phase)
    low, needed, high = (size + outside for size in (peak.low_bytes, peak.needed_bytes, peak.high_bytes))
    unit, _, _ = _scale(assessment, columns)
    said = f"{gib(needed)}, band {gib(low)} to {gib(high)}"
    mark = Mark(row=worst, low=low / unit, middle=needed / unit, high=high / unit, said=said)
    note = f"The diamond is what the run needs, with its error band: {said}."
    if any("fragmentation" in column.piles for column in columns.phases):
        note += " Fragmentation above it is cached, and given back when memory is short."
    return _memory(
        "Memory by phase, at its peak on the worst rank", assessment, columns, columns.phases, names, mark, note
    )


def _by_stage(assessment: Assessment, columns: Breakdown) -> Chart:
    names = [f"stage {column.stage}" for column in columns.stages]
    return _memory("Memory by pipeline stage, at its peak", assessment, columns, columns.stages, names, None, "")


def _memory(
    title: str,
    assessment: Assessment,
    columns: Breakdown,
    shown: Sequence[Column],
    names: Sequence[str],
    mark: Mark | None,
    note: str,
) -> Chart:
    unit, name, top = _scale(assessment, columns)
    pieces: list[Piece] = []
    for column, row in zip(shown, names, strict=True):
        pieces += piles.of_column(column, row, unit)
    ends = {(row, ""): gib(column.device_bytes) for column, row in zip(shown, names, strict=True)}
    capacity, limit = assessment.verdict.capacity_bytes, None
    if capacity is not None and capacity <= top:
        limit = (capacity / unit, f"capacity {gib(capacity)}")
    elif capacity is not None:
        note += f" The capacity, {gib(capacity)}, is far to the right of this axis."
    words = (f"{row} {gib(column.device_bytes)}" for column, row in zip(shown, names, strict=True))
    return Chart(
        title=title,
        spec=bars(
            pieces,
            piles.COLOURS,
            title=f"memory of one rank, {name}",
            top=top / unit,
            ends=ends,
            limit=limit,
            mark=mark,
        ),
        said=f"{title}: {', '.join(words)}; {'capacity unknown' if capacity is None else f'capacity {gib(capacity)}'}.",
        note=note.strip(),
    )


def _step(speed: SpeedEstimate) -> Chart:
    of, name = plot_time.unit(speed.step_seconds)
    where = " on the slowest stage" if len(speed.stages) > 1 else ""
    parts = plot_time.shown(speed)
    return Chart(
        title="The time of a step, by part",
        spec=plot_time.chart(parts, speed.step_seconds, of, f"time of a step{where}, {name}"),
        said=", ".join(f"{name_of(part.name)} {plot_time.said(part.exposed)}" for part in parts),
    )


def _scale(assessment: Assessment, columns: Breakdown) -> tuple[int, str, float]:
    """The axis: bytes of its unit, the unit's name, and where it ends, in bytes."""
    estimate, capacity = _estimate(assessment), assessment.verdict.capacity_bytes or 0
    both = (*columns.phases, *columns.stages)
    tallest = max(estimate.peak.high_bytes + estimate.outside_bytes, *(column.device_bytes for column in both))
    top = _ROOM * (tallest if capacity > _OFF_SCALE * tallest else max(tallest, capacity))
    return (*piles.unit_for(top), top)


def _phase_name(column: Column, *, staged: bool) -> str:
    name = column.phase.replace("_", " ")
    return f"{name} (stage {column.stage})" if staged else name


def _estimate(assessment: Assessment) -> MemoryEstimate:
    if assessment.estimate is None:
        raise AssertionError("a figure of a run that is not valid")
    return assessment.estimate
