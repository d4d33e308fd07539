"""Predictions of ``launch check`` for a row: by our engine's constant, and as if its stack was never measured."""

from __future__ import annotations

import statistics
from functools import cache

from benchmarks.speed.estimating import Judged, chosen, constant_of
from launcher import backends
from launcher.estimate.speed import calibration
from launcher.estimate.speed.calibration import Constant
from launcher.estimate.speed.card import Card


def checked(item: Judged, tables: calibration.Tables | None = None) -> Constant:
    """The constant that a check of the same run takes, whose engine is the nearest of ours, and its relatives."""
    row = item.row
    execution = backends.of(row.run).execution(row.run)
    if execution is None:
        return constant_of(item, tables)
    return chosen(tables, execution.framework, row.card, execution.related, experts=row.moe)


def unseen(item: Judged, tables: calibration.Tables | None = None) -> Constant:
    """The constant of a row from the runs of all other frameworks."""
    row = item.row
    related = row.backend.executes.related if row.backend is not None else ()
    if tables is None:
        return _shipped(row.framework, row.card, related, row.moe)
    return _without(tables, row.framework, row.card, related, row.moe)


@cache
def _shipped(framework: str, card: Card, related: tuple[str, ...], experts: bool) -> Constant:
    return _without(calibration.shipped(), framework, card, related, experts)


def _without(
    tables: calibration.Tables, framework: str, card: Card, related: tuple[str, ...], experts: bool
) -> Constant:
    rest = {**_less(tables, framework), "experts": _less(tables["experts"], framework)}
    every = [row["constant"] for row in rest["frameworks"].values() if row["rows"] >= calibration.LEAST_ROWS]
    rest["all"] = {**tables["all"], "constant": statistics.median(every or [1.0])}
    return calibration.chosen(rest, framework, card, related, experts=experts)


def _less(tables: calibration.Tables, framework: str) -> calibration.Tables:
    """The tables of one kind of models without one framework."""
    kept = {name: row for name, row in tables["pairs"].items() if not name.startswith(f"{framework} on ")}
    frameworks = {name: row for name, row in tables["frameworks"].items() if name != framework}
    return {**tables, "pairs": kept, "frameworks": frameworks}
