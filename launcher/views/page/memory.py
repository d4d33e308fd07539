"""The memory part of a run's page: predicted and measured by phase and pile, over time, and on the host."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from launcher.base import typed
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.units import Pair, gib
from launcher.charts.bars import Segment, bars
from launcher.charts.html import Cell, Html, table, tag
from launcher.charts.lines import MOST, areas, curves, thinned_places
from launcher.charts.page import Chart, Section
from launcher.estimate.memory.breakdown import Column
from launcher.estimate.memory.moments import PHASES
from launcher.job.memory import MemoryRecord, PhaseMemory
from launcher.rundir import contents
from launcher.views.check import piles
from launcher.views.page.source import Source
from launcher.views.pairs import error_text

_FAR = 4  # A capacity above this multiple of the largest peak is named below the chart, not drawn to scale.
_RANKS = 16  # Most ranks whose memory over time is on the page.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phase:
    phase: str  # Its name in records.
    column: Column | None  # Its piles as predicted by this version; None without a prediction.
    peak: PhaseMemory | None  # Its measured piles on the fullest rank; None when not measured by pile.
    sizes: Pair[int]  # The whole peak, predicted and measured.
    moved: bool  # True if this version would predict another peak than the plan.

    @property
    def name(self) -> str:
        """The name of its bars."""
        return self.phase.replace("_", " ")


def section(source: Source) -> Section:
    """The memory charts, or a sentence on why there are none."""
    parts: list[Chart | Html | str] = [*_by_phase(source), *_over_time(source), *_host(source)]
    return Section(identity="memory", title="Memory", parts=parts)


def _by_phase(source: Source) -> Iterator[Chart | Html | str]:
    peaks = worst(source.memory)
    if source.predicted is None:
        yield from _without_piles(source)
    phases = list(_phases(source, peaks))
    if not phases:
        yield _missing("Memory by phase was neither predicted nor measured.")
        return
    top = max(
        1, *(size for each in phases for size in each.sizes.known), *(peak.allocated_bytes for peak in peaks.values())
    )
    unit, name = piles.unit_for(top)
    capacity, limit = source.capacity_bytes, None
    if capacity is not None and capacity <= _FAR * top:
        top, limit = max(top, capacity), (capacity / unit, f"capacity {gib(capacity)}")
    ends = {key: text for each in phases for key, text in _ends(each)}
    pieces, title = [piece for each in phases for piece in _pieces(each, unit)], f"allocated on the worst rank, {name}"
    end = 1.45 * top / unit  # Room for the longest label behind the longest bar.
    spec = bars(pieces, piles.COLOURS, title=title, top=end, ends=ends, limit=limit)
    rows = (f"{each.name}: {', '.join(text for (row, _), text in ends.items() if row == each.name)}" for each in phases)
    yield Chart(
        title="Predicted and measured, by phase and pile",
        spec=spec,
        said=f"Bars of memory by phase. {'; '.join(rows)}.",
        note=" ".join(_notes(source, phases, far=capacity is not None and limit is None)),
        numbers=_numbers(phases),
    )


def _phases(source: Source, peaks: Mapping[str, PhaseMemory]) -> Iterator[_Phase]:
    columns = {} if source.predicted is None else {each.phase: each for each in source.predicted.columns.phases}
    for phase in PHASES:
        column, peak, planned = columns.get(phase), peaks.get(phase), source.plan["phases"].get(phase)
        recorded = planned if typed.is_whole(planned) else None
        computed = None if column is None else column.allocated_bytes
        expected = computed if recorded is None else recorded
        found = [source.measured.get(phase), None if peak is None else peak.allocated_bytes]
        known = [size for size in found if size is not None]
        if expected or known:
            moved = computed is not None and recorded is not None and abs(computed - recorded) > recorded / 1000
            sizes = Pair(expected, max(known, default=None))
            yield _Phase(phase=phase, column=column, peak=peak, sizes=sizes, moved=moved)


def _pieces(phase: _Phase, unit: int) -> Iterator[Segment]:
    if phase.column is not None:
        yield from piles.of_column(phase.column, phase.name, unit, of="predicted", allocated=True)
    elif phase.sizes.predicted is not None:
        yield from piles.of_sizes({piles.TOLD_ELSEWHERE: phase.sizes.predicted}, phase.name, unit, of="predicted")
    if phase.peak is not None:
        yield from piles.of_sizes(phase.peak.piles, phase.name, unit, of="measured")
    elif phase.sizes.measured is not None:
        yield from piles.of_sizes({piles.TOLD_ELSEWHERE: phase.sizes.measured}, phase.name, unit, of="measured")


def _ends(phase: _Phase) -> Iterator[tuple[tuple[str, str], str]]:
    error = error_text(phase.sizes)
    if phase.sizes.predicted is not None:
        yield (phase.name, "predicted"), f"predicted {gib(phase.sizes.predicted)}"
    if phase.sizes.measured is not None:
        text = f"measured {gib(phase.sizes.measured)}"
        yield (phase.name, "measured"), f"{text} (prediction {error})" if error else text


def worst(records: Sequence[MemoryRecord]) -> dict[str, PhaseMemory]:
    """The fullest rank's peak of each phase, over all steps."""
    return {phase: peak for phase, (_, peak) in _fullest(records, lambda record, phase: phase).items()}


def _fullest[K](
    records: Sequence[MemoryRecord], key: Callable[[MemoryRecord, str], K]
) -> dict[K, tuple[str, PhaseMemory]]:
    """The phase and piles of the highest peak of each kind, by ``key``."""
    found: dict[K, tuple[str, PhaseMemory]] = {}
    for record in records:
        for phase, peak in record.phases.items():
            kind = key(record, phase)
            if kind not in found or peak.allocated_bytes > found[kind][1].allocated_bytes:
                found[kind] = phase, peak
    return found


def _notes(source: Source, phases: Sequence[_Phase], *, far: bool) -> Iterator[str]:
    if source.predicted is not None:
        yield "Point at a pile for its formula and source."
    if method := contents.known(source.folder, contents.MEMORY).get("method"):
        yield f"Measured: {method}."
    if not source.memory and source.measured:
        yield "The measured peaks are not split by pile: the run wrote no memory.jsonl."
    if not source.memory and not source.measured:
        yield "Nothing was measured yet, or the run wrote neither memory.jsonl nor memory.json."
    if far and source.capacity_bytes is not None:
        yield f"A rank's capacity is {gib(source.capacity_bytes)}, far to the right of the axis."
    if moved := [each.phase for each in phases if each.moved]:
        yield f"The recorded predictions are shown; this version predicts other figures for {', '.join(moved)}."


def _without_piles(source: Source) -> Iterator[Html]:
    if source.is_script:
        yield _missing("A script of your own: its memory is not predicted.")
    elif source.spec is None:
        yield _missing("This version cannot read the run's specification; the recorded predictions are shown.")
    else:
        yield _missing("This version would refuse the run; the recorded predictions are shown.")
    rows = [_recorded(each) for each in source.plan.get("piles") or () if isinstance(each, dict)]
    if rows:
        yield table(["pile", "size", "formula", "source"], rows, caption="predicted piles at the peak, as recorded")


def _recorded(pile: JsonObject) -> tuple[object, ...]:
    texts = (Cell(pile.get(key) or "", wide=True) for key in ("formula", "source"))
    size = pile.get("bytes")
    return piles.name_of(str(pile.get("pile"))), gib(size) if typed.is_whole(size) else "-", *texts


def _numbers(phases: Sequence[_Phase]) -> Html:
    rows: list[Sequence[object]] = []
    for each in phases:
        expected = {} if each.column is None else {str(pile): size for pile, size in each.column.piles.items()}
        formulas = (
            {}
            if each.column is None
            else {str(pile): each.column.explained(pile).formula for pile in each.column.piles}
        )
        found = {} if each.peak is None else each.peak.piles
        for pile in dict.fromkeys([*expected, *found]):
            if pile not in piles.OUTSIDE:
                texts = Pair(expected.get(pile), found.get(pile)).texts(gib, unknown="")
                rows.append((f"{each.name}: {piles.name_of(pile)}", *texts, Cell(formulas.get(pile, ""), wide=True)))
        rows.append((f"{each.name}, in all", *each.sizes.texts(gib), ""))
    return table(["", "predicted", "measured", "formula"], rows)


def _over_time(source: Source) -> Iterator[Chart | Html | str]:
    # A first save or evaluation writes a line of its own that is no step.
    stepped = [record for record in source.memory if record.trained or "load" in record.phases]
    if not stepped:
        if not source.is_script:
            yield _missing("Memory over time is unknown: the run wrote no memory.jsonl (train.log_memory_every).")
        return
    sizes = {rank: peak.allocated_bytes for rank, (_, peak) in _fullest(stepped, lambda each, _: each.rank).items()}
    shown, top = sorted(sorted(sizes, key=lambda rank: (-sizes[rank], rank))[:_RANKS]), max(sizes.values())
    unit, name = piles.unit_for(top)
    rows = [row for rank in shown for row in _rows_of(stepped, rank, unit, MOST // len(shown))]
    left_out = f" Of {len(sizes)} ranks those {_RANKS} with the largest peaks are here." * (len(sizes) > _RANKS)
    title = f"allocated at a step's peak, {name}"
    warned = "".join(f" {event['text']}." for event in source.events if event["kind"] == "memory_growth")
    yield Chart(
        title="Over time, by pile",
        spec=areas(rows, piles.COLOURS, title=title, ranks=[str(rank) for rank in shown]),
        said=f"Memory of a rank by pile over {len({record.step for record in stepped})} sampled steps.",
        note=f"The fullest phase of each sampled step.{left_out}{warned}",
        zoom="step",
    )


def _rows_of(records: Sequence[MemoryRecord], rank: int, unit: int, most: int) -> Iterator[JsonObject]:
    """Every pile of the rank at each step, including empty ones, on which the other areas are stacked."""
    fullest = _fullest([record for record in records if record.rank == rank], lambda record, _: record.step)
    shown = dict.fromkeys(pile for _, peak in fullest.values() for pile in peak.piles)
    steps = sorted(fullest)
    for number in thinned_places([float(fullest[step][1].allocated_bytes) for step in steps], max(8, most)):
        phase, peak = fullest[steps[number]]
        for pile in shown:
            size = peak.piles.get(pile, 0)
            place = {"step": steps[number], "rank": str(rank), "pile": piles.name_of(pile)}
            yield place | {"bytes": round(size / unit, 4), "size": gib(size), "phase": phase.replace("_", " ")}


def _host(source: Source) -> Iterator[Chart | Html | str]:
    with_host = [record for record in source.memory if record.host is not None]
    if not with_host:
        return
    rows = list(_host_rows(with_host))
    known = [record.host.node_bytes for record in with_host if record.host and record.host.node_bytes]
    capacity = f"A node has {gib(min(known))}." if known else "The capacity of a node is unknown."
    yield Chart(
        title="Host memory",
        spec=curves(rows, x="step", y="GiB", title="host memory, GiB", series="of"),
        said=f"Memory of the host over the sampled steps. {capacity}",
        note=capacity,
        zoom="step",
    )


def _host_rows(records: Sequence[MemoryRecord]) -> Iterator[JsonObject]:
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
