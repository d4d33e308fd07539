"""Runs and sweeps on a terminal: the tables of ``launch status``, and the view of ``launch watch``."""

import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from launcher.base.terminal import filled, wrapped
from launcher.base.units import duration, gib, rounded
from launcher.estimate.memory.terms import PILES, Pile
from launcher.rundir import contents, results, run_names, state
from launcher.rundir.live import Live, MemoryNow, SlowestRank
from launcher.rundir.status import RunState
from launcher.slurm.jobs import Waiting
from launcher.sweeping import sweep
from launcher.sweeping.point import Point
from launcher.sweeping.sweep import Row, basis, words
from launcher.views.pairs import number_text

_BARS = "▁▂▃▄▅▆▇█"
_FULL, _EMPTY = "━", "┄"
_HEAD = 10  # Width of a line's label, in columns.
_LETTERS: Mapping[Pile, str] = dict(zip(PILES, "PGOMALRDTWCNF", strict=True))
"""The letter of each pile in the memory bar, since colours alone would not distinguish them."""

_HEADINGS = ("run", "state", "step", "last loss", "tokens/s", "left", "saved", "job")


def table(rows: Sequence[RunState], *, placed: bool, folder: Path) -> list[str]:
    """A line a run, and below it why it waits or how it ended, and the newest losses on named data sets.

    With ``placed`` the runs stand below the folder where they lie.
    """
    cells = {row: _cells(row, None if placed else folder) for row in rows}
    widths = [max(len(row[i]) for row in (_HEADINGS, *cells.values())) for i in range(len(_HEADINGS))]

    def joined(row: Sequence[str]) -> str:
        return "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()

    found = [joined(_HEADINGS)]
    for place, some in groupby(rows, key=_place):
        found += [f"in {place}:"] if placed else []
        for row in some:
            found += [joined(cells[row]), *([] if row.reason is None else [f"  {row.reason}"])]
            evaluation = row.progress.evaluation
            found += [f"  {results.evaluation_text(evaluation)}"] if evaluation and evaluation["sets"] else []
    failed = next((cells[row][0] for row in rows if row.state in ("failed", "lost")), None)
    return found if failed is None else [*found, f"why: launch why {shlex.quote(failed)}"]


def _place(row: RunState) -> Path:
    return Path(row.directory).parents[len(Path(row.id).parts) - 1]


def by_place(rows: Sequence[RunState]) -> list[RunState]:
    """Runs grouped by folder, the folder with the newest run last."""
    newest = {_place(row): number for number, row in enumerate(rows)}
    return sorted(rows, key=lambda row: newest[_place(row)])


def _cells(row: RunState, folder: Path | None) -> tuple[str, ...]:
    now = row.progress
    name = row.id if folder is None else run_names.name_of(Path(row.directory), folder)
    step = "-" if now.step is None else str(now.step) if now.steps is None else f"{now.step}/{now.steps}"
    loss = "-" if now.loss is None else f"{now.loss:.4f}"
    speed = "-" if now.tokens_per_second is None else f"{now.tokens_per_second:,.0f}"
    left = duration(now.seconds_left) if row.state == "running" else "-"
    left += " (predicted)" if row.state == "running" and now.left_is == "predicted" else ""
    saved = "-" if now.checkpoint_step is None else str(now.checkpoint_step)
    return (name, row.state, step, loss, speed, left, saved, row.job_id or "-")


def frame(row: RunState, now: Live, width: int) -> list[str]:
    """The lines of ``launch watch`` for one moment of a run."""
    return [
        *_heading(row, width),
        *_queue(now.queue),
        *_progress(row, width),
        *_curves(now, width),
        *_evaluation(row, width),
        *(() if now.memory is None else _memory(now.memory, width)),
        *(() if now.slowest is None else _slowest(now.slowest, width)),
    ]


def _heading(row: RunState, width: int) -> Iterator[str]:
    job = f"  job {row.job_id}" if row.job_id else ""
    yield f"{row.id}  {row.state}{job}"
    if row.reason:
        yield from wrapped(row.reason, width, "  ", "  ")


def _queue(found: Waiting | None) -> Iterator[str]:
    if found is None:
        return
    start = f"; Slurm expects a start at {found.start}" if found.start else "; no expected start from Slurm yet"
    yield f"{'queue':{_HEAD}}{found.place} of {found.jobs} waiting in partition {found.partition}{start}"


def _progress(row: RunState, width: int) -> Iterator[str]:
    now = row.progress
    if now.step is None and now.steps is None:
        return
    done, steps = now.step or 0, now.steps
    left = ""
    if row.state == "running" and now.seconds_left is not None:
        by = " (predicted)" if now.left_is == "predicted" else ""
        left = f"  {duration(now.seconds_left)} left{by}"
    saved = "" if now.checkpoint_step is None else f"  saved {now.checkpoint_step:,}"
    if not steps:
        yield f"{'step':{_HEAD}}{done:,}{saved}"
        return
    text = f"{done:,}/{steps:,} {done / steps:.0%}{left}{saved}"
    room = max(8, min(30, width - _HEAD - len(text) - 2))
    yield f"{'step':{_HEAD}}{_bar(done / steps, room)}  {text}"


def _bar(share: float, columns: int) -> str:
    full = min(columns, int(share * columns))
    return _FULL * full + _EMPTY * (columns - full)


def _curves(now: Live, width: int) -> Iterator[str]:
    room = max(10, min(len(now.recent), width - _HEAD - 34))
    for key, name, form in (("loss", "last loss", ".4f"), ("tokens_per_second", "tokens/s", ",.0f")):
        values = [point[key] for point in now.recent if point[key] is not None]
        if values:
            beside = _beside(now, values) if key == "tokens_per_second" else ""
            yield f"{name:{_HEAD}}{values[-1]:<10{form}} {sparkline(values[-room:])}{beside}"


def _evaluation(row: RunState, width: int) -> Iterator[str]:
    if (found := row.progress.evaluation) is not None:
        text = results.evaluation_text(found).removeprefix("held-out loss ")
        yield from wrapped(f"{text} at step {found['step']}", width, f"{'held out':{_HEAD}}", " " * _HEAD)


def _beside(now: Live, values: Sequence[float]) -> str:
    predicted = now.predicted_tokens_per_second
    if not predicted:
        return ""
    return f"  {values[-1] / predicted - 1:+.0%} of {rounded(predicted)} predicted"


def sparkline(values: Sequence[float]) -> str:
    """A sparkline, one column a value, scaled from the lowest to the highest; constant values stand mid-height."""
    low, high = min(values), max(values)
    if high == low:
        return _BARS[3] * len(values)
    return "".join(_BARS[min(7, int(8 * (value - low) / (high - low)))] for value in values)


def _memory(found: MemoryNow, width: int) -> Iterator[str]:
    of = "" if found.capacity_bytes is None else f" of {gib(found.capacity_bytes)}"
    said = "" if not found.predicted_bytes else f", predicted {gib(found.predicted_bytes)}"
    where = f" at the peak in {found.phase.replace('_', ' ')}"
    if found.rank is not None:
        where += f" on rank {found.rank}, step {found.step:,}"
    yield f"{'memory':{_HEAD}}{gib(found.allocated_bytes)}{of}{said}"
    if _is_small(found, width - _HEAD):
        where += "; the bar shows only the peak"
    yield f"{'':{_HEAD}}{where.strip()}"
    yield f"{'':{_HEAD}}{memory_bar(found, width - _HEAD)}"
    shown = sorted(found.piles.items(), key=lambda pile: -pile[1])
    letters = {str(pile): letter for pile, letter in _LETTERS.items()}
    words = [f"{letters.get(name, '?')} {name.replace('_', ' ')} {gib(size)}" for name, size in shown if size > 0]
    yield from filled(words, width, " | ", " " * _HEAD, " " * _HEAD)


def _is_small(found: MemoryNow, columns: int) -> bool:
    return found.allocated_bytes * (columns - 2) < (found.capacity_bytes or 0)


def memory_bar(found: MemoryNow, columns: int) -> str:
    """A bar of the peak by pile, scaled to the capacity, or to the peak when that is unknown or much larger."""
    capacity = 0 if _is_small(found, columns) else found.capacity_bytes or 0
    whole = max(capacity, found.allocated_bytes) or 1
    known = [(_LETTERS[name], found.piles.get(name, 0)) for name in PILES]
    text, total, inside = "", 0, columns - 2
    for letter, size in known if found.piles else [("#", found.allocated_bytes)]:
        total += size
        text += letter * (round(inside * total / whole) - len(text))
    return f"[{text[:inside]:{_EMPTY}<{inside}}]"


def _slowest(found: SlowestRank, width: int) -> Iterator[str]:
    slower = "" if not found.slower else f", {found.slower:.0%} above the median of the ranks' own work"
    yield f"{'slowest':{_HEAD}}rank {found.rank}{slower}"
    for line in found.lines:
        yield f"{'':{_HEAD}}| {line}"[:width]


def folded(lines: Sequence[str], width: int) -> list[str]:
    """Lines wrapped to the width."""
    wrapper = textwrap.TextWrapper(width, subsequent_indent=" " * _HEAD)
    return [part for line in lines for part in ([line] if len(line) <= width else wrapper.wrap(line))]


_COLUMNS = ("point", "state", "verdict", "loss", "tokens/s", "predicted", "measured")
_FORM = "{:5} {:9} {:12} {:>8} {:>9} {:>10} {:>10}"
_BELOW = " " * 6


def sweep_text(found: Iterable[Row], width: int = 80, *, heading: bool = True) -> str:
    """The points of a sweep for a terminal: figures on one line, overrides and a reason below."""
    lines = [_FORM.format(*_COLUMNS)] if heading else []
    for one in found:
        figures = (number_text(one.loss, ".4f"), number_text(one.tokens_per_second, ",.0f"))
        sizes = ("-" if size is None else gib(size) for size in (one.point.predicted_bytes, one.measured_bytes))
        lines.append(_FORM.format(one.point.id, one.state, one.point.verdict.replace("_", " "), *figures, *sizes))
        lines += _words(one.point, width) + _below(one.reason or "", width)
    return "\n".join(lines)


def best_line(directory: Path, row: Row | None, found: Iterable[Row]) -> str:
    """The best point with the command that repeats it, or that ranks a measurement's layouts; or why there is none."""
    if contents.known(directory, state.SWEEP).get(sweep.MEASUREMENT) is not None:
        return f"\nranked by speed: launch plan --results {shlex.quote(run_names.name_of(directory, Path.cwd()))}"
    rows = list(found)
    by = basis(rows)
    if row is None:
        return f"\nnot ranked by loss: {by.why}" if by.kind is None else ""
    rest = sum(one.run is not None and one.run.state != "finished" for one in rows)
    so_far = f" so far ({rest} not finished)" if rest else ""
    loss = by.loss(row.trained)
    said = f"{loss:.4f}" if loss is not None else "-"
    return f"\n{by.words}{so_far}: {row.point.id}, {said}\n{shlex.join(['launch', *words(directory, row)])}"


def judged(points: Iterable[Point], width: int = 80) -> str:
    """Judged points that were not started: verdict, memory needed, and the largest pile."""
    found = list(points)
    speeds = [point.predicted_tokens_per_second_per_gpu for point in found]
    form = "{:5} {:13} {:>10}  {:>14}  {}" if any(speeds) else "{:5} {:13} {:>10}  {:.0}{}"  # Hides the fourth column.
    lines = [form.format("point", "verdict", "needs", "tokens/s a GPU", "largest pile")]
    for point, speed in zip(found, speeds, strict=True):
        needs = "-" if point.needed_bytes is None else gib(point.needed_bytes)
        pile = "-" if point.largest_pile is None else f"{point.largest_pile[0]} {gib(point.largest_pile[1])}"
        fast = "-" if speed is None else rounded(speed)
        lines.append(form.format(point.id, point.verdict.replace("_", " "), needs, fast, pile.replace("_", " ")))
        lines += _words(point, width) + _below(point.reason or "", width)
    return "\n".join(lines)


def _words(point: Point, width: int) -> list[str]:
    return _below(" ".join(point.proposed), width) + _below(" ".join(point.layout), width, first="layout: ")


def _below(words: str, width: int, *, first: str = "") -> list[str]:
    text = f"{first}{words}" if words else ""
    return wrapped(text, width, _BELOW, _BELOW)
