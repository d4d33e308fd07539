"""Charts of a step's time: its parts in sequence, and a Gantt chart of the stages of a pipeline.

Only exposed time has a length. The passes of a pipeline come from ``speed.schedule``; what follows them is drawn after
the last pass. Of many micro-batches only the first and the last are drawn, with a break between them.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from launcher import backends
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.units import rounded
from launcher.charts.bars import Segment, bars
from launcher.charts.page import Chart
from launcher.estimate.speed import schedule
from launcher.estimate.speed.result import SpeedEstimate, name_of
from launcher.estimate.speed.terms import StepPart
from launcher.rundir import results
from launcher.spec import RunSpec

COLOURS: dict[StepPart, str] = {
    "matrix_products": "#27496d", "attention": "#4d7ea8", "memory_bound": "#7fb0d4", "loss": "#b5d3e7",
    "reference": "#a9cbe2", "recompute": "#d3e4f0", "host": "#7d7d7d", "tensor": "#a8480f", "context": "#c25f1c",
    "expert": "#d9722e", "pipeline": "#e8934a", "bubble": "#e6e6e6", "data": "#f2b25c", "optimizer": "#3a8d6b",
    "offload": "#9b6fae", "checkpoint": "#c9b3d6", "waiting": "#b3b3b3",
}  # fmt: skip
"""Computation blue, traffic orange, waiting grey; they also differ in lightness, for colour-blind readers."""

_LEAST_SHARE = 0.0005  # Smallest share of a step that is drawn: less would be labelled 0.0%.


def unit(seconds: float) -> tuple[float, str]:
    """The unit of a time axis: its length in seconds, and its name."""
    return (1.0, "s") if seconds >= 1 else (1e-3, "ms")


def seconds_text(seconds: float) -> str:
    """A duration in s, ms or us, to three digits."""
    of, name = next(((of, name) for of, name in ((1.0, "s"), (1e-3, "ms")) if seconds >= of), (1e-6, "us"))
    return f"{rounded(seconds / of)} {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a step's time."""

    name: str  # As in :data:`COLOURS`.
    exposed: float  # Seconds that the step waits for it, overlapped with nothing.
    hidden: float  # Seconds overlapped with other work.
    formula: str  # How they were computed.
    source: str  # The source of the formula.


def step_parts(speed: SpeedEstimate) -> Iterator[Part]:
    """The parts of a step, in the order of ``PARTS``."""
    for part, terms in speed.parts():
        exposed = sum(term.exposed_seconds for term in terms)
        hidden = sum(term.seconds for term in terms) - exposed
        formula = " + ".join(term.formula for term in terms)
        source = "; ".join(dict.fromkeys(term.source for term in terms))
        yield Part(name=part, exposed=exposed, hidden=hidden, formula=formula, source=source)


def recorded_parts(plan: JsonObject) -> Iterator[Part]:
    """The parts of a step as recorded in ``plan.json``."""
    for row in (plan.get("speed") or {}).get("parts") or ():
        exposed, seconds = (results.number(row, key) for key in ("exposed_seconds", "seconds"))
        if exposed is not None:
            texts = {key: str(row.get(key) or "") for key in ("formula", "source")}
            yield Part(name=str(row.get("part")), exposed=exposed, hidden=max(0.0, (seconds or 0) - exposed), **texts)


def chart(parts: Iterable[Part], step: float, of: float, title: str) -> dict[str, Any]:
    """A waterfall chart of the parts, each labelled with its seconds and share; ``of`` is the axis unit in seconds.

    Parts too short to be seen are left out.
    """
    begun, pieces, ends = 0.0, [], {}
    for part in parts:
        if max(part.exposed, part.hidden) < _LEAST_SHARE * step:
            continue
        name, end = name_of(part.name), begun + part.exposed
        text = f"{seconds_text(part.exposed)}, {part.exposed / step:.1%}"
        text += f" (and {seconds_text(part.hidden)} hidden)" if part.hidden >= _LEAST_SHARE * step else ""
        hover = {"part": name, "takes": text, "formula": part.formula, "source": part.source}
        pieces.append(Segment(row=name, name=name, start=begun / of, end=end / of, hover=hover))
        ends[name, ""] = text
        begun = end
    colours = {name_of(part): colour for part, colour in COLOURS.items()}
    return bars(pieces, colours, title=title, top=1.3 * step / of, ends=ends)


_AFTER: tuple[StepPart, ...] = ("data", "optimizer", "offload", "checkpoint")  # Parts that occur once a step.
_BETWEEN: tuple[StepPart, ...] = ("pipeline", "bubble")  # Parts that follow from the schedule, outside the passes.

_LEGEND: dict[str, str] = {
    "forward": COLOURS["matrix_products"], "backward": COLOURS["memory_bound"], "weights": COLOURS["loss"],
    "message": COLOURS["pipeline"], "idle": COLOURS["bubble"], **{part: COLOURS[part] for part in _AFTER},
}  # fmt: skip
_NAMES = {
    "forward": "forward pass", "backward": "backward pass", "weights": "backward pass of the weights",
    "data": "data parallel",
}  # fmt: skip
_SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "interleaved 1F1B", "zero_bubble": "zero bubble"}
_ROUNDS = 3  # Micro-batches drawn on each side of the break, beyond those that fill the pipeline.
_BREAK_SHARE = 0.04
_TICKS = 6  # Most tick marks on each side of the break.


@dataclass(frozen=True, slots=True)
class Bar:
    """An interval of a stage, in seconds from the start of the step; ``name`` is a key of the legend."""

    name: str
    start: float
    end: float
    label: str = ""


@dataclass(frozen=True, slots=True)
class Gantt:
    """The timeline of a pipeline's step."""

    rows: tuple[tuple[Bar, ...], ...]  # The bars of each stage, contiguous from 0 to the end.
    end: float  # Length of the step in seconds.
    gap: tuple[float, float] | None  # The interval left out of the drawing; None when all of it is drawn.


def gantt(spec: RunSpec, speed: SpeedEstimate) -> Gantt | None:
    """The timeline of a run's step; None without a pipeline, or when its schedule does not order single passes."""
    execution = backends.of(spec).execution(spec)
    if len(speed.stages) < 2 or execution is None:
        return None
    overlaps = execution.pipeline_overlap
    times = schedule.simulated(spec, speed.stages, overlaps=overlaps)
    if times is None:
        return None
    scale = _stretch(spec, speed)
    passed = schedule.makespan(times) * scale
    after, end = [], passed
    for part in _AFTER:
        if seconds := speed.exposed(part):
            after.append(Bar(part, end, end + seconds))
            end += seconds
    lettered = spec.parallel.virtual_pipeline > 1
    rows = tuple((*_row(row, passed, scale, overlaps=overlaps, lettered=lettered), *after) for row in times)
    return Gantt(rows, end, _gap(spec, speed, passed, end, scale))


def _stretch(spec: RunSpec, speed: SpeedEstimate) -> float:
    slowest = max(stage.seconds for stage in speed.stages)
    inside = speed.step_seconds - sum(speed.exposed(part) for part in (*_AFTER, *_BETWEEN))
    return inside / (spec.gradient_accumulation * slowest)


def _row(row: tuple[schedule.Timed, ...], until: float, scale: float, *, overlaps: bool, lettered: bool) -> list[Bar]:
    bars: list[Bar] = []
    free = 0.0
    for one in row:
        start, end, sent = one.start * scale, one.end * scale, one.sent * scale
        if start > free:
            bars.append(Bar("idle", free, start))
        chunk = chr(ord("a") + one.what.chunk) if lettered else ""
        bars.append(Bar(one.what.kind, start, end, f"{one.what.micro_batch + 1}{chunk}"))
        if sent > end and not overlaps:
            bars.append(Bar("message", end, sent))
        free = end if overlaps else sent
    if until > free:
        bars.append(Bar("idle", free, until))
    return bars


def _gap(spec: RunSpec, speed: SpeedEstimate, passed: float, end: float, scale: float) -> tuple[float, float] | None:
    slowest = max(stage.seconds for stage in speed.stages)
    beside = (spec.parallel.pipeline + _ROUNDS) * slowest * scale
    return (beside, passed - beside) if passed > 2.5 * beside else None


def gantt_chart(spec: RunSpec, found: Gantt) -> Chart:
    """A Gantt chart with one row a stage."""
    of, name = unit(found.end)
    left_out = found.gap or (found.end, found.end)
    space = _BREAK_SHARE * (found.end - (left_out[1] - left_out[0])) if found.gap else 0.0
    shift = left_out[1] - left_out[0] - space
    pieces = [
        piece
        for stage, row in enumerate(found.rows)
        for bar in row
        for piece in _drawn(f"stage {stage}", bar, left_out, shift, of)
    ]
    ticks = _ticks(found, left_out, shift, of)
    cut, moved = left_out[0] / of, shift / of
    labels = f"format(datum.value > {cut:.9g} ? datum.value + {moved:.9g} : datum.value, '~g')" if found.gap else None
    words, top = caption(spec, found), (found.end - shift) / of
    return Chart(
        title="The passes of a step, by pipeline stage",
        spec=bars(pieces, legend(found), title=f"one step, {name}", top=top, labels=labels, ticks=ticks),
        said=words,
        note=words,
    )


def _drawn(row: str, bar: Bar, gap: tuple[float, float], shift: float, of: float) -> Iterator[Segment]:
    name = _name(bar.name)
    hover = {"": name, **({"micro-batch": bar.label} if bar.label else {}), "takes": seconds_text(bar.end - bar.start)}
    for start, end in _pieces(bar, gap, shift):
        yield Segment(row=row, name=name, start=start / of, end=end / of, label=bar.label, hover=hover)


def _ticks(found: Gantt, gap: tuple[float, float], shift: float, of: float) -> list[float] | None:
    if found.gap is None:
        return None
    before = _round(0, gap[0] / of)
    return [*before, *(tick - shift / of for tick in _round(gap[1] / of, found.end / of))]


def _round(start: float, end: float) -> list[float]:
    """Round tick values of an interval, spaced by the smallest 1, 2 or 5 times a power of ten that gives few enough."""
    power = 10.0 ** math.floor(math.log10((end - start) / _TICKS))
    step = next(each * power for each in (1, 2, 5, 10) if (end - start) / (each * power) <= _TICKS)
    return [number * step for number in range(math.ceil(start / step), math.floor(end / step) + 1)]


def caption(spec: RunSpec, found: Gantt) -> str:
    """The schedule in words, with the time that the chart leaves out."""
    count, parallel = spec.gradient_accumulation, spec.parallel
    chunks = f" of {parallel.virtual_pipeline} chunks (a, b, ...)" if parallel.virtual_pipeline > 1 else ""
    text = (
        f"{_SCHEDULES[parallel.schedule]}: {count} micro-batch{'es' if count > 1 else ''} on {parallel.pipeline}"
        f" stages{chunks}. A pass includes its communication and the wait for slower GPUs."
    )
    if parallel.schedule == "zero_bubble":
        text += " A backward pass is split in two: input gradients, and weight gradients."
    if found.gap:
        skipped = seconds_text(found.gap[1] - found.gap[0])
        text += f" Only the first and the last micro-batches are drawn: {skipped} between them are left out."
    return text


def legend(found: Gantt) -> dict[str, str]:
    """The name and colour of each kind of bar."""
    seen = {bar.name for row in found.rows for bar in row}
    return {_name(name): colour for name, colour in _LEGEND.items() if name in seen}


def _name(name: str) -> str:
    return _NAMES.get(name, name.replace("_", " "))


def _pieces(bar: Bar, gap: tuple[float, float], shift: float) -> list[tuple[float, float]]:
    before = [(bar.start, min(bar.end, gap[0]))] if bar.start < gap[0] else []
    behind = [(max(bar.start, gap[1]) - shift, bar.end - shift)] if bar.end > gap[1] else []
    return before + behind
