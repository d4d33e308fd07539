"""Measured speed over predicted speed, a constant for a framework and GPU, and the residuals around it.

The figures are ``calibration.json`` beside this file, written by ``python -m benchmarks.speed --data DIR
--write-calibration``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass

CALIBRATION = Path(__file__).with_name("calibration.json")

LEAST_ROWS = 5  # Measured runs below which a constant would be that of one or two configurations.


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """The factor between measured and predicted speed that a prediction was multiplied with."""

    value: float  # Measured / predicted tokens a second, the median of ``rows`` runs.
    low: float  # The lower end of the band around the corrected prediction, as a factor.
    high: float  # The upper end.
    rows: int  # The measured runs that it is of; 0 where none was used.
    whose: str  # The framework and GPU, or the wider group, whose runs they are.
    # True if they are the user's own runs on this cluster, and not those of the shipped calibration.
    here: bool = False


UNCALIBRATED = Constant(value=1.0, low=1.0, high=1.0, rows=0, whose="no measured run")


@cache
def constant(framework: str, gpu: str, related: tuple[str, ...] = (), *, experts: bool = False) -> Constant:
    """The constant of a framework on a GPU; of the framework on any, where there is none; else the median of all.

    Where related frameworks are named, it is the median of the pairs of all of these on the GPU, else of those on other
    GPUs, so that a card of which nothing was measured does not stand behind a weaker one for that.
    A model with experts takes those of runs of such models, where there are enough of these frameworks'.
    """
    calibration, names = _calibration(), (framework, *related)
    if experts and (found := _of(calibration.get("experts", {}), names, gpu)) is not None:
        return found
    found = _of(calibration, names, gpu)
    if found is None:
        found = _read(calibration["all"]) if "all" in calibration else UNCALIBRATED
    return _without_experts(found, calibration.get("experts", {})) if experts and found.rows else found


def _of(tables: Mapping[str, Any], names: tuple[str, ...], gpu: str) -> Constant | None:
    """The constant by the tables of one kind of models; None where too little was measured of these frameworks."""
    pairs, alone = tables.get("pairs", {}), len(names) == 1
    here = _enough(pairs.get(f"{name} on {gpu}") for name in names)
    there = [] if alone else _enough(pairs[pair] for name in names for pair in pairs if pair.startswith(f"{name} on "))
    if here or there:
        return _middle(here or there, f"on {gpu}" if here else "on other GPUs")
    rows = _enough(tables.get("frameworks", {}).get(name) for name in names)
    return _read(rows[0]) if rows else None


def _enough(rows: Iterable[JsonObject | None]) -> list[JsonObject]:
    return [row for row in rows if row is not None and row["rows"] >= LEAST_ROWS]


def _middle(pairs: Sequence[JsonObject], where: str) -> Constant:
    """The median of pairs, one vote each; the band is their own, as wide again as their constants differ."""
    if len(pairs) == 1:
        return _read(pairs[0])
    from statistics import median  # Late, because it takes a while to import.

    constants = [pair["constant"] for pair in pairs]
    value = median(constants)
    names = list(dict.fromkeys(pair["whose"].partition(" on ")[0] for pair in pairs))
    _, comma, kind = pairs[0]["whose"].partition(", ")
    words = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return Constant(
        value=value,
        low=min(constants) / value * median(pair["low"] for pair in pairs),
        high=max(constants) / value * median(pair["high"] for pair in pairs),
        rows=sum(pair["rows"] for pair in pairs),
        whose=f"{len(pairs)} pairs of {words} {where}{comma}{kind}",
    )


def _without_experts(found: Constant, experts: Mapping[str, Any]) -> Constant:
    """The constant of other models for one with experts: the band reaches as far as runs of such models lay."""
    rows = _enough(experts.get("frameworks", {}).values())
    return replace(
        found,
        low=min([found.low, *(row["constant"] * row["low"] / found.value for row in rows)]),
        high=max([found.high, *(row["constant"] * row["high"] / found.value for row in rows)]),
        whose=f"{found.whose}, models without experts",
    )


@cache
def version() -> str | None:
    """The day and commit of the figures: a ratio of measured and predicted speed holds beside them as long as they."""
    content = _calibration()
    commit = (content.get("commit") or {}).get("commit")
    return f"{content['date']} {commit[:7]}" if commit and "date" in content else None


@cache
def _calibration() -> JsonObject:
    content: JsonObject = json.loads(CALIBRATION.read_text()) if CALIBRATION.exists() else {}
    return content


def _read(row: JsonObject) -> Constant:
    return Constant(value=row["constant"], low=row["low"], high=row["high"], rows=row["rows"], whose=row["whose"])
