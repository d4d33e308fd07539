"""A sweep as a table: a line a point, with its prediction and its result."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable
from pathlib import Path

from launcher.base.units import gib, rounded
from launcher.rundir import contents, run_names, state
from launcher.sweeping import sweep
from launcher.sweeping.outcomes import Row, basis, words
from launcher.sweeping.point import Point

_HEADINGS = ("point", "state", "verdict", "loss", "tokens/s", "predicted", "measured")

_FORM = "{:5} {:9} {:12} {:>8} {:>9} {:>10} {:>10}"

_INDENT = " " * 6


def text(found: Iterable[Row], width: int = 80, *, heading: bool = True) -> str:
    """The rows for a terminal: the figures on one line, the overrides and a reason below them."""
    lines = [_FORM.format(*_HEADINGS)] if heading else []
    for one in found:
        now = "left out" if one.run is None else one.run.state
        figures = (_number(one.loss, ".4f"), _number(one.tokens_per_second, ",.0f"))
        sizes = ("-" if size is None else gib(size) for size in (one.point.predicted_bytes, one.measured_bytes))
        lines.append(_FORM.format(one.point.id, now, one.point.verdict.replace("_", " "), *figures, *sizes))
        reason = one.point.reason or (None if one.run is None else one.run.reason)
        lines += _words(one.point, width) + _below(reason or "", width)
    return "\n".join(lines)


def best_line(directory: Path, row: Row | None, found: Iterable[Row]) -> str:
    """The best point with the line that repeats it, of a measurement the line that ranks it; or why there is none."""
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
    """Points that are judged and not started: the verdict, the figure it rests on, and which pile is the largest.

    Predicted tokens a second of one GPU are a column where any point has them.
    """
    found = list(points)
    speeds = [point.predicted_tokens_per_second_per_gpu for point in found]
    form = "{:5} {:13} {:>10}  {:>14}  {}" if any(speeds) else "{:5} {:13} {:>10}  {:.0}{}"  # No letter of the fourth.
    lines = [form.format("point", "verdict", "needs", "tokens/s a GPU", "largest pile")]
    for point, speed in zip(found, speeds, strict=True):
        needs = "-" if point.needed_bytes is None else gib(point.needed_bytes)
        pile = "-" if point.largest_pile is None else f"{point.largest_pile[0]} {gib(point.largest_pile[1])}"
        fast = "-" if speed is None else rounded(speed)
        lines.append(form.format(point.id, point.verdict.replace("_", " "), needs, fast, pile.replace("_", " ")))
        lines += _words(point, width) + _below(point.reason or "", width)
    return "\n".join(lines)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _words(point: Point, width: int) -> list[str]:
    """The overrides of a point, and on lines of their own those that are its layout."""
    return _below(" ".join(point.proposed), width) + _below(" ".join(point.layout), width, first="layout: ")


def _below(words: str, width: int, *, first: str = "") -> list[str]:
    text = f"{first}{words}" if words else ""
    return textwrap.wrap(text, width, initial_indent=_INDENT, subsequent_indent=_INDENT, break_long_words=False)
