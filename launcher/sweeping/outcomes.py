"""The rows of a sweep: a point, its run, and the measurements of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.rundir import contents, results, status
from launcher.sweeping import sweep
from launcher.sweeping.point import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A point and its run; bytes are allocated peaks of the worst rank. None where there is no number, or not yet."""

    point: Point
    run: status.RunState | None
    loss: float | None
    tokens_per_second: float | None
    measured_bytes: int | None
    trained: results.Trained | None = None

    def as_dict(self) -> JsonObject:
        """The row of ``launch status SWEEP --json``: that of a run, and the point's own columns."""
        run: JsonObject = {"id": self.point.id, "directory": None, "state": None, "job_id": None, "step": None}
        if self.run is not None:
            run = self.run.as_dict()
        return {
            **self.point.as_dict(),
            **run,
            "reason": self.point.reason or run.get("reason"),
            "point": self.point.id,
            "loss": self.loss,
            "tokens_per_second": self.tokens_per_second,
            "measured_bytes": self.measured_bytes,
        }


def rows(directory: Path) -> list[Row]:
    """Every point of a sweep, those left out included."""
    points = list(sweep.points(directory))
    known = iter(status.read_all([directory / point.id for point in points if point.kept]))  # Slurm is asked once.
    return [row(directory, point, next(known) if point.kept else None) for point in points]


def row(directory: Path, point: Point, now: status.RunState | None = None) -> Row:
    """One point of a sweep that was started; ``now`` where its state is known already."""
    if not point.kept:
        return Row(point=point, run=None, loss=None, tokens_per_second=None, measured_bytes=None)
    run = directory / point.id
    steps, measured = results.steps(run), results.measured(run)
    return Row(
        point=point,
        run=now or status.read(run),
        loss=results.loss(steps) if steps else None,
        tokens_per_second=results.speed(steps),
        measured_bytes=max(measured.values(), default=None),
        trained=results.trained_on(run, steps) if steps else None,
    )


def basis(found: Iterable[Row]) -> results.Basis:
    """The loss that ranks points."""
    return results.ranking_basis(row.trained for row in found if row.trained is not None)


def best(found: Iterable[Row]) -> Row | None:
    """The point with the lowest loss; None where none has one that is a number, or their losses cannot be ranked."""
    rows = list(found)
    by = basis(rows)
    known = ((loss, row) for row in rows if (loss := by.loss(row.trained)) is not None and math.isfinite(loss))
    return min(known, key=lambda pair: pair[0], default=(0.0, None))[1]


def words(directory: Path, row: Row) -> list[str]:
    """The overrides that repeat a point as a run of its own: without the name, the folder and the axes of the sweep."""
    recorded = contents.known(directory / row.point.id, contents.PLAN).get("overrides", [])
    return [word for word in recorded if not word.startswith(("run.name=", "run.directory=", "sweep=", "sweep."))]
