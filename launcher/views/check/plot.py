"""``launch check --plot FILE``: the piles of a run by phase and stage, the time of a step, and tables of both."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.base.units import gib
from launcher.charts.bars import Mark, bars
from launcher.charts.html import Cell, Html, items, joined, table, tag
from launcher.charts.page import Chart, Section, page, write_figure
from launcher.estimate.memory.breakdown import Breakdown, Column
from launcher.estimate.memory.result import MemoryEstimate
from launcher.estimate.memory.terms import PILES
from launcher.estimate.speed.result import SpeedEstimate, name_of
from launcher.preflight.assess import Assessment
from launcher.preflight.verdict import VerdictName
from launcher.views.check import piles, sentences
from launcher.views.check import time as plot_time
from launcher.views.check.text import heading

_OFF_SCALE = 8  # A capacity above this multiple of the longest bar is named below the chart, not drawn to scale.
_ROOM = 1.13  # Share of the axis kept free after the longest bar, for its label.
_WORDS: Mapping[VerdictName, str] = {"fits": "good", "tight": "warn", "does_not_fit": "bad"}
_NOISE = 1e-9  # Hidden seconds below this are a rounding error.


def write(path: Path, assessment: Assessment, columns: Breakdown) -> None:
    """Write the memory chart of a valid run to a file, by :func:`~launcher.charts.page.write_figure`."""
    drawn = charts(assessment, columns)
    said = (*heading(assessment), *sentences.speed(assessment))
    write_figure(path, said, drawn, lambda: _page(assessment, columns, drawn))


def charts(assessment: Assessment, columns: Breakdown) -> list[Chart]:
    """Memory by phase and, where there are several, by pipeline stage, and below them the time of a step."""
    found = [_by_phase(assessment, columns)]
    found += [_by_stage(assessment, columns)] if len(columns.stages) > 1 else []
    speed = assessment.speed
    if speed is not None:
        found.append(_step(speed))
        passes = plot_time.gantt(assessment.spec, speed)
        found += [] if passes is None else [plot_time.gantt_chart(assessment.spec, passes)]
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
    note = f"The diamond marks the memory needed, with its error band: {said}."
    if any("fragmentation" in column.piles for column in columns.phases):
        note += " Fragmentation above it is cached and released when memory runs short."
    title = "Memory by phase, at its peak on the worst rank"
    return _memory(title, assessment, columns, columns.phases, names, mark, note)


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
    named = list(zip(shown, names, strict=True))
    pieces = [piece for column, row in named for piece in piles.of_column(column, row, unit)]
    ends = {(row, ""): gib(column.device_bytes) for column, row in named}
    capacity, limit = assessment.verdict.capacity_bytes, None
    if capacity is not None and capacity <= top:
        limit = (capacity / unit, f"capacity {gib(capacity)}")
    elif capacity is not None:
        note += f" The capacity, {gib(capacity)}, is far to the right of this axis."
    words = (f"{row} {gib(column.device_bytes)}" for column, row in named)
    axis = f"memory of one rank, {name}"
    return Chart(
        title=title,
        spec=bars(pieces, piles.COLOURS, title=axis, top=top / unit, ends=ends, limit=limit, mark=mark),
        said=f"{title}: {', '.join(words)}; {'capacity unknown' if capacity is None else f'capacity {gib(capacity)}'}.",
        note=note.strip(),
    )


def _step(speed: SpeedEstimate) -> Chart:
    of, name = plot_time.unit(speed.step_seconds)
    where = " on the slowest stage" if len(speed.stages) > 1 else ""
    parts = list(plot_time.step_parts(speed))
    return Chart(
        title="The time of a step, by part",
        spec=plot_time.chart(parts, speed.step_seconds, of, f"time of a step{where}, {name}"),
        said=", ".join(f"{name_of(part.name)} {plot_time.seconds_text(part.exposed)}" for part in parts),
    )


def _scale(assessment: Assessment, columns: Breakdown) -> tuple[int, str, float]:
    """The unit of the axis in bytes, its name, and the end of the axis in bytes."""
    estimate, capacity = _estimate(assessment), assessment.verdict.capacity_bytes or 0
    both = (*columns.phases, *columns.stages)
    tallest = max(estimate.peak.high_bytes + estimate.outside_bytes, *(column.device_bytes for column in both))
    top = _ROOM * (tallest if capacity > _OFF_SCALE * tallest else max(tallest, capacity))
    return (*piles.unit_for(top), top)


def _phase_name(column: Column, *, staged: bool = False) -> str:
    name = column.phase.replace("_", " ")
    return f"{name} (stage {column.stage})" if staged else name


def _estimate(assessment: Assessment) -> MemoryEstimate:
    assert assessment.estimate is not None, "a figure of a run that is not valid"
    return assessment.estimate


def _page(assessment: Assessment, columns: Breakdown, drawn: Sequence[Chart]) -> str:
    run, verdict = heading(assessment)
    estimate = _estimate(assessment)
    word = tag("p", verdict, class_=_WORDS[assessment.verdict.name])
    memory = [chart for chart in drawn if chart.title.startswith("Memory")]
    names = [_phase_name(column) for column in columns.phases]
    tables = [_columns("phases", "by phase, each at its peak", columns.phases, names)]
    if len(columns.stages) > 1:
        names = [f"stage {column.stage} ({_phase_name(column)})" for column in columns.stages]
        tables.append(_columns("stages", "by pipeline stage, each at its peak", columns.stages, names))
    sections = [
        Section(identity="memory", title="Memory", parts=[*memory, *tables]),
        Section(identity="worst", title="The peak of the worst rank", parts=[_counters(assessment, estimate)]),
    ]
    if assessment.speed is not None:
        times = [chart for chart in drawn if chart not in memory]
        parts: list[Chart | Html | str] = [*sentences.speed(assessment), *times, _speed(assessment.speed)]
        sections.append(Section(identity="time", title="The time of a step", parts=parts))
    title = "How the piles at the peak were computed"
    sections.append(Section(identity="how", title=title, parts=[_formulas(estimate)]))
    if assessment.fixes:
        title = "What would fit, cheapest first"
        ways = (
            joined(tag("code", " ".join(fix.overrides)), f" needs {gib(fix.peak_bytes)}; {fix.price}")
            for fix in assessment.fixes
        )
        sections.append(Section(identity="fixes", title=title, parts=[items(ways)]))
    return page(run, word, sections)


def _columns(identity: str, caption: str, columns: Sequence[Column], names: Sequence[str]) -> Html:
    rows = []
    for pile in PILES:
        sizes = [column.piles.get(pile, 0) for column in columns]
        if any(sizes):
            rows.append([pile.replace("_", " "), *(gib(size) if size else "" for size in sizes)])
    foot = [
        ["allocated", *(gib(column.allocated_bytes) for column in columns)],
        ["whole process", *(gib(column.device_bytes) for column in columns)],
    ]
    return table(["", *names], rows, caption=caption, foot=foot, identity=identity)


def _counters(assessment: Assessment, estimate: MemoryEstimate) -> Html:
    peak, outside, capacity = estimate.peak, estimate.outside_bytes, assessment.verdict.capacity_bytes
    rows = [
        ("allocated (max_memory_allocated)", gib(peak.allocated_bytes)),
        ("needed, with context and communicators", gib(peak.needed_bytes + outside)),
        ("its error band", f"{gib(peak.low_bytes + outside)} to {gib(peak.high_bytes + outside)}"),
        ("reserved (max_memory_reserved)", gib(peak.reserved_bytes)),
        ("whole process (nvidia-smi)", gib(peak.device_bytes)),
        ("capacity", "unknown" if capacity is None else gib(capacity)),
        ("between two steps, allocated", gib(estimate.static_bytes)),
    ]
    return table([], rows, identity="peak")


def _speed(speed: SpeedEstimate) -> Html:
    rows = []
    for part in plot_time.step_parts(speed):
        share = f"{part.exposed / speed.step_seconds:.1%}"
        behind = plot_time.seconds_text(part.hidden) if part.hidden > _NOISE else ""
        texts = (Cell(part.formula, wide=True), Cell(part.source, wide=True))
        rows.append([name_of(part.name), plot_time.seconds_text(part.exposed), share, behind, *texts])
    foot = [["a step", plot_time.seconds_text(speed.step_seconds), "100.0%", "", "", ""]]
    return table(["part", "waited for", "share", "hidden", "formula", "source"], rows, foot=foot, identity="speed")


def _formulas(estimate: MemoryEstimate) -> Html:
    rows = [
        [pile.pile.replace("_", " "), gib(pile.bytes), Cell(pile.formula, wide=True), Cell(pile.source, wide=True)]
        for pile in sorted(estimate.piles, key=lambda pile: -pile.bytes)
    ]
    return table(["pile", "size", "formula", "source"], rows, identity="formulas")
