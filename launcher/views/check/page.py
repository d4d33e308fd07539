"""The page of ``launch check --plot FILE.html``: one file with the figure and its numbers, which loads nothing.

The charts are those of ``launcher.views.check.plot``. Tables below them give the same piles in numbers, then the
time of a step by part, the formulas and sources of the peak, and the ways out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.base.units import gib
from launcher.charts.html import Cell, Html, items, joined, table, tag
from launcher.charts.page import Chart, Section
from launcher.charts.page import page as shell
from launcher.estimate.memory.breakdown import Breakdown, Column
from launcher.estimate.memory.result import MemoryEstimate
from launcher.estimate.memory.terms import PILES
from launcher.estimate.speed.result import SpeedEstimate
from launcher.estimate.speed.summary import name_of
from launcher.preflight.assess import Assessment
from launcher.preflight.verdict import VerdictName
from launcher.views.check import speed_line
from launcher.views.check.text import heading
from launcher.views.check.time import said

_WORDS: Mapping[VerdictName, str] = {"fits": "good", "tight": "warn", "does_not_fit": "bad"}

_NOISE = 1e-9
"""Seconds below which hidden time is a rounding error."""


def page(assessment: Assessment, columns: Breakdown, charts: Sequence[Chart]) -> str:
    """The whole page.

    Args:
        assessment: A valid run.
        columns: Its piles.
        charts: Its figure.
    """
    run, verdict = heading(assessment)
    estimate = assessment.estimate
    if estimate is None:
        raise AssertionError("a page of a run that is not valid")
    word = tag("p", verdict, class_=_WORDS[assessment.verdict.name])
    memory = [chart for chart in charts if chart.title.startswith("Memory")]
    names = [_phase(column) for column in columns.phases]
    tables = [_columns("phases", "by phase, each at its peak", columns.phases, names)]
    if len(columns.stages) > 1:
        names = [f"stage {column.stage} ({_phase(column)})" for column in columns.stages]
        tables.append(_columns("stages", "by pipeline stage, each at its peak", columns.stages, names))
    sections = [
        Section(identity="memory", title="Memory", parts=[*memory, *tables]),
        Section(identity="worst", title="The peak of the worst rank", parts=[_counters(assessment, estimate)]),
    ]
    if assessment.speed is not None:
        drawn = [chart for chart in charts if chart not in memory]
        parts: list[Chart | Html | str] = [*speed_line.sentences(assessment), *drawn, _speed(assessment.speed)]
        sections.append(Section(identity="time", title="The time of a step", parts=parts))
    title = "How the piles at the peak were computed"
    sections.append(Section(identity="how", title=title, parts=[_formulas(estimate)]))
    if assessment.fixes:
        title = "What would fit, cheapest first"
        sections.append(Section(identity="fixes", title=title, parts=[_fixes(assessment)]))
    return shell(run, word, sections)


def _columns(identity: str, caption: str, columns: Sequence[Column], names: Sequence[str]) -> Html:
    """A row a pile and a column a peak, and their sums."""
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
    """A row a part."""
    rows = []
    for part, terms in speed.parts():
        exposed = speed.exposed(part)
        hidden = sum(term.seconds for term in terms) - exposed
        formula = Cell(" + ".join(term.formula for term in terms), wide=True)
        source = Cell("; ".join(dict.fromkeys(term.source for term in terms)), wide=True)
        share = f"{exposed / speed.step_seconds:.1%}"
        rows.append([name_of(part), said(exposed), share, said(hidden) if hidden > _NOISE else "", formula, source])
    foot = [["a step", said(speed.step_seconds), "100.0%", "", "", ""]]
    return table(["part", "waited for", "share", "hidden", "formula", "source"], rows, foot=foot, identity="speed")


def _formulas(estimate: MemoryEstimate) -> Html:
    rows = [
        [pile.pile.replace("_", " "), gib(pile.bytes), Cell(pile.formula, wide=True), Cell(pile.source, wide=True)]
        for pile in sorted(estimate.piles, key=lambda pile: -pile.bytes)
    ]
    return table(["pile", "size", "formula", "source"], rows, identity="formulas")


def _fixes(assessment: Assessment) -> Html:
    return items(
        joined(tag("code", " ".join(fix.overrides)), f" needs {gib(fix.peak_bytes)}; {fix.price}")
        for fix in assessment.fixes
    )


def _phase(column: Column) -> str:
    return column.phase.replace("_", " ")
