"""The table of ``launch status``: a line a run, and below it why it waits or how it ended."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from launcher.base.units import duration
from launcher.rundir import status
from launcher.rundir.state import RunState

_HEADINGS = ("run", "state", "step", "last loss", "tokens/s", "left", "saved", "job")


def lines(rows: Sequence[RunState], *, placed: bool, folder: Path) -> list[str]:
    """A line a run, and below it why it waits or how it ended; with ``placed`` below the folder where it lies."""
    cells = {row: _cells(row, None if placed else folder) for row in rows}
    widths = [max(len(row[i]) for row in (_HEADINGS, *cells.values())) for i in range(len(_HEADINGS))]

    def joined(row: Sequence[str]) -> str:
        return "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()

    found = [joined(_HEADINGS)]
    for place, some in groupby(rows, key=_place):
        found += [f"in {place}:"] if placed else []
        for row in some:
            found += [joined(cells[row]), *_reason(row)]
    failed = next((cells[row][0] for row in rows if row.state in ("failed", "lost")), None)
    return found if failed is None else [*found, f"why: launch why {shlex.quote(failed)}"]


def _place(row: RunState) -> Path:
    """The folder in which the run, its sweep or its group lies."""
    return Path(row.directory).parents[len(Path(row.id).parts) - 1]


def by_place(rows: Sequence[RunState]) -> list[RunState]:
    """The runs of one folder together, the folder with the newest run last."""
    newest = {_place(row): number for number, row in enumerate(rows)}
    return sorted(rows, key=lambda row: newest[_place(row)])


def _cells(row: RunState, folder: Path | None) -> tuple[str, ...]:
    now = row.progress
    name = row.id if folder is None else status.name_of(Path(row.directory), folder)
    step = "-" if now.step is None else str(now.step) if now.steps is None else f"{now.step}/{now.steps}"
    loss = "-" if now.loss is None else f"{now.loss:.4f}"
    speed = "-" if now.tokens_per_second is None else f"{now.tokens_per_second:,.0f}"
    left = duration(now.seconds_left) if row.state == "running" else "-"
    left += " by the estimate" if row.state == "running" and now.left_is == "predicted" else ""
    saved = "-" if now.checkpoint_step is None else str(now.checkpoint_step)
    return (name, row.state, step, loss, speed, left, saved, row.job_id or "-")


def _reason(row: RunState) -> Iterator[str]:
    if row.reason is not None:
        yield f"  {row.reason}"
