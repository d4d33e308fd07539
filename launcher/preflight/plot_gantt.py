"""One step of a pipeline in the figure of ``--plot``: what each stage does when, by the run's schedule.

The passes are those of ``launcher.speed.schedule``; what follows them (gradients, optimizer, checkpoints) is drawn
behind the last one. Of many micro-batches the first and the last are drawn, with a break between.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher import backends
from launcher.preflight.plot_time import COLOURS, INK, hatched, said, tidy, unit
from launcher.spec import RunSpec
from launcher.speed import schedule
from launcher.speed.result import SpeedEstimate
from launcher.speed.terms import StepPart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

_AFTER: tuple[StepPart, ...] = ("data", "optimizer", "offload", "checkpoint")
"""Parts that come once a step."""

_BETWEEN: tuple[StepPart, ...] = ("pipeline", "bubble")
"""Parts between the passes, which the order of the passes gives; all others lie inside of them."""

_LEGEND: dict[str, str] = {
    "forward": COLOURS["matrix_products"],
    "backward": COLOURS["memory_bound"],
    "weights": COLOURS["loss"],
    "message": COLOURS["pipeline"],
    "idle": COLOURS["bubble"],
    **{part: COLOURS[part] for part in _AFTER},
}
_NAMES = {
    "forward": "forward pass",
    "backward": "backward pass",
    "weights": "backward pass of the weights",
    "data": "data parallel",
}
_SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "interleaved 1F1B", "zero_bubble": "ZB-H1"}

_ROUNDS = 3
"""Micro-batches that are drawn at each side of a break beyond those that fill the pipeline."""
_BREAK_SHARE = 0.04
_LABELLED_SHARE = 0.014
"""Share of the drawn time that a pass must take to hold the number of its micro-batch."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of a stage's time, in seconds from the step's start; ``name`` is a key of the legend."""

    name: str
    start: float
    end: float
    label: str = ""


@dataclass(frozen=True, slots=True)
class Gantt:
    """A step of a pipeline.

    Attributes:
        rows: The bars of each stage, without gaps from 0 to the end.
        end: Seconds of the whole.
        gap: The time that is left out of the drawing; None where all of it is drawn.
    """

    rows: tuple[tuple[Bar, ...], ...]
    end: float
    gap: tuple[float, float] | None


def gantt(spec: RunSpec, speed: SpeedEstimate) -> Gantt | None:
    """The bars of a run's step; None without a pipeline, and where its schedule has no order of single passes."""
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
    """What the passes take of a step over what the stages' times say, which know a micro-batch and no more.

    The waiting for slower GPUs and the sums of gradients are shared out among them.
    """
    slowest = max(stage.seconds for stage in speed.stages)
    inside = speed.step_seconds - sum(speed.exposed(part) for part in (*_AFTER, *_BETWEEN))
    return inside / (spec.gradient_accumulation * slowest)


def _row(row: tuple[schedule.Timed, ...], until: float, scale: float, *, overlaps: bool, lettered: bool) -> list[Bar]:
    """One stage's passes, the messages that it waits for, and the time between in which it idles."""
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
    """What is left out between the first and the last micro-batches, where there are more than a figure can show."""
    slowest = max(stage.seconds for stage in speed.stages)
    beside = (spec.parallel.pipeline + _ROUNDS) * slowest * scale
    return (beside, passed - beside) if passed > 2.5 * beside else None


def draw(room: SubFigure, spec: RunSpec, found: Gantt) -> None:
    """Draw a row a stage, and the legend of its colours."""
    from matplotlib.patches import Patch

    panel = room.subplots()
    of, name = unit(found.end)
    left_out = found.gap or (found.end, found.end)
    space = _BREAK_SHARE * (found.end - (left_out[1] - left_out[0])) if found.gap else 0.0
    shift = left_out[1] - left_out[0] - space
    width = found.end - shift
    for stage, row in enumerate(found.rows):
        for bar_name, colour in _LEGEND.items():
            here = [bar for bar in row if bar.name == bar_name]
            pieces = [piece for bar in here for piece in _pieces(bar, left_out, shift)]
            if pieces:
                ranges = [(start / of, (end - start) / of) for start, end in pieces]
                style = hatched(colour) or {"edgecolor": "white"}
                panel.broken_barh(ranges, (stage - 0.4, 0.8), facecolor=colour, linewidth=0.4, **style)
        _labels(panel, stage, row, left_out, shift, of, width)
    _axis(panel, found, left_out, shift, of)
    panel.set_ylim(len(found.rows) - 0.4, -0.6)
    panel.set_xlim(0, width / of)
    panel.set_ylabel("pipeline stage")
    panel.set_xlabel(
        "\n".join([f"one step, {name}", *textwrap.wrap(caption(spec, found), 110, break_on_hyphens=False)])
    )
    tidy(panel)
    handles = [Patch(facecolor=colour, label=name, **hatched(colour)) for name, colour in legend(found).items()]
    room.legend(handles=handles, loc="outside upper left", frameon=False, ncols=len(handles), fontsize=9.5)


def caption(spec: RunSpec, found: Gantt) -> str:
    """What is drawn, and what is not."""
    count, parallel = spec.gradient_accumulation, spec.parallel
    chunks = f" of {parallel.virtual_pipeline} chunks (a, b, ...)" if parallel.virtual_pipeline > 1 else ""
    text = (
        f"{_SCHEDULES[parallel.schedule]}: {count} micro-batch{'es' if count > 1 else ''} on {parallel.pipeline}"
        f" stages{chunks}. A pass holds its traffic and the waiting for slower GPUs."
    )
    if parallel.schedule == "zero_bubble":
        text += " A backward pass is cut in halves: of the inputs, and of the weights."
    if found.gap:
        skipped = said(found.gap[1] - found.gap[0])
        text += f" Only the first and the last micro-batches are drawn: {skipped} between are left out."
    return text


def legend(found: Gantt) -> dict[str, str]:
    """Names and colours of what is drawn."""
    seen = {bar.name for row in found.rows for bar in row}
    return {_NAMES.get(name, name.replace("_", " ")): colour for name, colour in _LEGEND.items() if name in seen}


def _pieces(bar: Bar, gap: tuple[float, float], shift: float) -> list[tuple[float, float]]:
    """Start and end of a bar on the axis: before the gap, behind it, or both."""
    before = [(bar.start, min(bar.end, gap[0]))] if bar.start < gap[0] else []
    behind = [(max(bar.start, gap[1]) - shift, bar.end - shift)] if bar.end > gap[1] else []
    return before + behind


def _labels(
    panel: Axes, stage: int, row: tuple[Bar, ...], gap: tuple[float, float], shift: float, of: float, width: float
) -> None:
    """The micro-batch's number on each pass that has room for it."""
    for bar in row:
        if (
            bar.label
            and bar.end - bar.start >= _LABELLED_SHARE * width
            and not (bar.start < gap[1] and bar.end > gap[0])
        ):
            middle = (bar.start + bar.end) / 2 - (shift if bar.start >= gap[1] else 0.0)
            ink = "white" if bar.name == "forward" else INK
            panel.text(middle / of, stage, bar.label, ha="center", va="center", fontsize=8, color=ink, clip_on=True)


def _axis(panel: Axes, found: Gantt, gap: tuple[float, float], shift: float, of: float) -> None:
    """Ticks that name the times of the step on both sides of the break."""
    from matplotlib.ticker import MaxNLocator

    panel.set_yticks(range(len(found.rows)))
    if found.gap is None:
        return
    before = [tick for tick in MaxNLocator(6).tick_values(0, gap[0] / of) if 0 <= tick <= gap[0] / of]
    end = found.end / of
    behind = [tick for tick in MaxNLocator(6).tick_values(gap[1] / of, end) if gap[1] / of <= tick <= end]
    panel.set_xticks([*before, *(tick - shift / of for tick in behind)], [f"{tick:g}" for tick in (*before, *behind)])
    panel.text((gap[0] + gap[1] - shift) / 2 / of, (len(found.rows) - 1) / 2, "...", ha="center", va="center")
