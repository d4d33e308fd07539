"""Memory in the page of a run: predicted against measured by phase and pile, over time, and of the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.base import typed
from launcher.base.units import Pair, gib
from launcher.charts.bars import Piece, bars
from launcher.charts.html import Cell, Html, table, tag
from launcher.charts.lines import MOST, areas, curves, thinned_places
from launcher.charts.page import Chart, Section
from launcher.estimate.memory.moments import PHASES
from launcher.job.memory import MemoryRecord, PhaseMemory
from launcher.rundir import contents, results
from launcher.views.check import piles
from launcher.views.page.source import Source
from launcher.views.pairs import error_text

_FAR = 4
"""A capacity of so many times the largest peak is named below the chart: beside it no pile could be told."""
_RANKS = 16
"""Ranks whose memory over time the page holds."""


def section(source: Source) -> Section:
    """Everything about memory, or why there is nothing."""
    parts: list[Chart | Html | str] = [*_by_phase(source), *_over_time(source), *_host(source)]
    return Section(identity="memory", title="Memory", parts=parts)


def _by_phase(source: Source) -> Iterator[Chart | Html | str]:
    measured = worst(source.memory)
    sums = {phase: size for phase, size in source.measured.items() if phase != results.BETWEEN}
    if source.predicted is None:
        yield from _without_piles(source)
    phases = [phase for phase in PHASES if _predicted_bytes(source, phase) or phase in measured or phase in sums]
    if not phases:
        yield _missing("Neither a prediction nor a measurement of memory by phase is there.")
        return
    top = max(_largest(source, measured), *sums.values(), 1)
    unit, name = piles.unit_for(top)
    pieces: list[Piece] = []
    ends: dict[tuple[str, str], str] = {}
    for phase in phases:
        _phase(source, phase, measured, sums, unit, pieces, ends)
    capacity, limit = source.capacity_bytes, None
    if capacity is not None and capacity <= _FAR * top:
        top, limit = max(top, capacity), (capacity / unit, f"capacity {gib(capacity)}")
    spec = bars(
        pieces,
        piles.COLOURS,
        title=f"allocated on the worst rank, {name}",
        top=1.45 * top / unit,  # Room for the longest label behind the longest bar.
        ends=ends,
        limit=limit,
    )
    yield Chart(
        title="Predicted and measured, by phase and pile",
        spec=spec,
        said=_said(ends),
        note=_note(source, measured, far=capacity is not None and limit is None),
        numbers=_numbers(source, phases, measured, sums),
    )


def _phase(
    source: Source,
    phase: str,
    measured: Mapping[str, PhaseMemory],
    sums: Mapping[str, int],
    unit: int,
    pieces: list[Piece],
    ends: dict[tuple[str, str], str],
) -> None:
    """The two bars of a phase."""
    row, expected = phase.replace("_", " "), _predicted_bytes(source, phase)
    column = _column(source, phase)
    if column is not None:
        pieces += piles.of_column(column, row, unit, of="predicted", allocated=True)
    elif expected is not None:
        pieces += piles.of_sizes({piles.TOLD_ELSEWHERE: expected}, row, unit, of="predicted")
    if expected is not None:
        ends[row, "predicted"] = f"predicted {gib(expected)}"
    if phase in measured:
        pieces += piles.of_sizes(measured[phase].piles, row, unit, of="measured")
    elif phase in sums:
        pieces += piles.of_sizes({piles.TOLD_ELSEWHERE: sums[phase]}, row, unit, of="measured")
    found = _measured_bytes(phase, measured, sums)
    if found is not None:
        error = error_text(Pair(expected, found))
        ends[row, "measured"] = f"measured {gib(found)}" + (f" (prediction {error})" if error else "")


def _column(source: Source, phase: str) -> Any:
    found = () if source.predicted is None else source.predicted.columns.phases
    return next((column for column in found if column.phase == phase), None)


def _predicted_bytes(source: Source, phase: str) -> int | None:
    """As recorded; what this version says where the record has nothing."""
    size = (source.plan.get("phases") or {}).get(phase)
    if typed.is_whole(size):
        return size
    column = _column(source, phase)
    return None if column is None else int(column.allocated_bytes)


def _measured_bytes(phase: str, measured: Mapping[str, PhaseMemory], sums: Mapping[str, int]) -> int | None:
    sizes = [measured[phase].allocated_bytes] if phase in measured else []
    return max([*sizes, *([sums[phase]] if phase in sums else [])], default=None)


def _largest(source: Source, measured: Mapping[str, PhaseMemory]) -> int:
    expected = [size for phase in PHASES if (size := _predicted_bytes(source, phase)) is not None]
    return max([*expected, *(peak.allocated_bytes for peak in measured.values())], default=0)


def worst(records: Sequence[MemoryRecord]) -> dict[str, PhaseMemory]:
    """The fullest rank's peak of each phase, over all steps."""
    found: dict[str, PhaseMemory] = {}
    for record in records:
        for phase, peak in record.phases.items():
            if phase not in found or peak.allocated_bytes > found[phase].allocated_bytes:
                found[phase] = peak
    return found


def _said(ends: Mapping[tuple[str, str], str]) -> str:
    phases = list(dict.fromkeys(row for row, _ in ends))
    each = (f"{row}: {', '.join(said for (of, _), said in ends.items() if of == row)}" for row in phases)
    return f"Bars of memory by phase. {'; '.join(each)}."


def _note(source: Source, measured: Mapping[str, PhaseMemory], *, far: bool) -> str:
    said = []
    if source.predicted is not None:
        said.append("Formulas and sources are shown under the pointer.")
    method = contents.known(source.folder, contents.MEMORY).get("method")
    if method:
        said.append(f"Measured: {method}.")
    if not measured and source.measured:
        said.append("The piles of the measured peaks are not known: the run left no memory.jsonl.")
    if not measured and not source.measured:
        said.append("Nothing was measured yet, or the run left neither memory.jsonl nor memory.json.")
    if far and source.capacity_bytes is not None:
        said.append(f"A rank's capacity is {gib(source.capacity_bytes)}, far to the right of the axis.")
    moved = [phase for phase in PHASES if (column := _column(source, phase)) and _moved(source, phase, column)]
    if moved:
        said.append(f"The plan's sums are shown; this version would predict others for {', '.join(moved)}.")
    return " ".join(said)


def _moved(source: Source, phase: str, column: Any) -> bool:
    size = (source.plan.get("phases") or {}).get(phase)
    return typed.is_whole(size) and abs(column.allocated_bytes - size) > size / 1000


def _without_piles(source: Source) -> Iterator[Html]:
    if source.is_script:
        yield _missing("A script of your own: its memory is not predicted.")
    elif source.spec is None:
        yield _missing("This version cannot read the run's specification; the plan's figures are shown as recorded.")
    else:
        yield _missing("This version would refuse the run; the plan's figures are shown as recorded.")
    rows = [_recorded(each) for each in source.plan.get("piles") or () if isinstance(each, dict)]
    if rows:
        yield table(["pile", "size", "formula", "source"], rows, caption="predicted piles at the peak, as recorded")


def _recorded(pile: Mapping[str, Any]) -> tuple[object, ...]:
    texts = (Cell(pile.get(key) or "", wide=True) for key in ("formula", "source"))
    return piles.name_of(str(pile.get("pile"))), _size(pile.get("bytes")), *texts


def _size(size: object) -> str:
    return gib(size) if typed.is_whole(size) else "-"


def _numbers(
    source: Source, phases: Sequence[str], measured: Mapping[str, PhaseMemory], sums: Mapping[str, int]
) -> Html:
    """Every pile of every phase, predicted and measured."""
    rows: list[Sequence[object]] = []
    for phase in phases:
        column, peak = _column(source, phase), measured.get(phase)
        expected = {} if column is None else dict(column.piles)
        found = {} if peak is None else peak.piles
        for pile in dict.fromkeys([*expected, *found]):
            if pile not in ("context", "communicators", "fragmentation"):
                texts = Pair(expected.get(pile), found.get(pile)).texts(gib, unknown="")
                formula = "" if column is None else column.formula(pile)
                rows.append((f"{phase.replace('_', ' ')}: {piles.name_of(pile)}", *texts, Cell(formula, wide=True)))
        both = Pair(_predicted_bytes(source, phase), _measured_bytes(phase, measured, sums))
        rows.append((f"{phase.replace('_', ' ')}, in all", *both.texts(gib), ""))
    return table(["", "predicted", "measured", "formula"], rows)


def _over_time(source: Source) -> Iterator[Chart | Html | str]:
    # A first save or evaluation has a line of its own, which is no step.
    stepped = [record for record in source.memory if record.trained or "load" in record.phases]
    if not stepped:
        if not source.is_script:
            yield _missing("Memory over time is not known: the run left no memory.jsonl (train.log_memory_every).")
        return
    ranks = sorted({record.rank for record in stepped})
    shown = _fullest(stepped) if len(ranks) > _RANKS else ranks
    top = max(peak.allocated_bytes for record in stepped for peak in record.phases.values())
    unit, name = piles.unit_for(top)
    rows = [row for rank in shown for row in _rows_of(stepped, rank, unit, MOST // len(shown))]
    left_out = (
        f" Of {len(ranks)} ranks those {_RANKS} with the largest peaks are here." if len(ranks) > len(shown) else ""
    )
    yield Chart(
        title="Over time, by pile",
        spec=areas(
            rows, piles.COLOURS, title=f"allocated at a step's peak, {name}", ranks=[str(rank) for rank in shown]
        ),
        said=f"Memory of a rank by pile over {len({record.step for record in stepped})} sampled steps.",
        note=f"The fullest phase of each sampled step.{left_out}{_warned(source)}",
        zoom="step",
    )


def _fullest(records: Sequence[MemoryRecord]) -> list[int]:
    peaks: dict[int, int] = {}
    for record in records:
        peak = max(each.allocated_bytes for each in record.phases.values())
        peaks[record.rank] = max(peak, peaks.get(record.rank, 0))
    return sorted(sorted(peaks, key=lambda rank: -peaks[rank])[:_RANKS])


def _rows_of(records: Sequence[MemoryRecord], rank: int, unit: int, most: int) -> Iterator[dict[str, Any]]:
    """Every pile of the rank at each step, also where it is empty: the areas of the others stand on it."""
    fullest = _peaks(records, rank)
    shown = dict.fromkeys(pile for _, peak in fullest.values() for pile in peak.piles)
    steps = sorted(fullest)
    for number in thinned_places([float(fullest[step][1].allocated_bytes) for step in steps], max(8, most)):
        phase, peak = fullest[steps[number]]
        for pile in shown:
            size = peak.piles.get(pile, 0)
            yield {
                "step": steps[number],
                "rank": str(rank),
                "pile": piles.name_of(pile),
                "bytes": round(size / unit, 4),
                "size": gib(size),
                "phase": phase.replace("_", " "),
            }


def _peaks(records: Sequence[MemoryRecord], rank: int) -> dict[int, tuple[str, PhaseMemory]]:
    """The fullest phase of each step of a rank; a step may have several lines, as where a checkpoint follows it."""
    found: dict[int, tuple[str, PhaseMemory]] = {}
    for record in records:
        for phase, peak in record.phases.items() if record.rank == rank else ():
            if record.step not in found or peak.allocated_bytes > found[record.step][1].allocated_bytes:
                found[record.step] = phase, peak
    return found


def _warned(source: Source) -> str:
    found = [str(event["text"]) for event in source.events if event["kind"] == "memory_growth"]
    return "".join(f" {text}." for text in found)


def _host(source: Source) -> Iterator[Chart | Html | str]:
    with_host = [record for record in source.memory if record.host is not None]
    if not with_host:
        return
    rows = list(_host_rows(with_host))
    known = [record.host.node_bytes for record in with_host if record.host and record.host.node_bytes]
    capacity = f"A node has {gib(min(known))}." if known else "How much a node has is not known."
    yield Chart(
        title="Host memory",
        spec=curves(rows, x="step", y="GiB", title="host memory, GiB", series="of"),
        said=f"Memory of the host over the sampled steps. {capacity}",
        note=capacity,
        zoom="step",
    )


def _host_rows(records: Sequence[MemoryRecord]) -> Iterator[dict[str, Any]]:
    """The memory in use on each node, and its largest process of the job."""
    found: dict[tuple[str, int], int] = {}
    for record in records:
        if record.host is None:
            continue
        sizes = {f"{record.node}: the largest rank's process": record.host.rank_bytes}
        if record.host.node_used_bytes is not None:
            sizes[f"{record.node}: in use"] = record.host.node_used_bytes
        for name, size in sizes.items():
            found[name, record.step] = max(size, found.get((name, record.step), 0))
    for name in sorted({name for name, _ in found})[:8]:
        points = sorted((step, size) for (of, step), size in found.items() if of == name)
        for number in thinned_places([float(size) for _, size in points], MOST // 4):
            step, size = points[number]
            yield {"step": step, "of": name, "GiB": round(size / 2**30, 3)}


def _missing(text: str) -> Html:
    return tag("p", text, class_="missing")
