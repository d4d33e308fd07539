"""Ratios of two runs: fp8 over bf16 of one recipe, and more GPUs over the fewest of a series."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.speed.estimating import Judged
from benchmarks.speed.row import LAYOUT

_RECIPE = ("framework", "framework_version", "gpu", "gpus_per_node", "model", "seq", "task")
_SPLIT = tuple(column for column in LAYOUT if column != "dp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Speed of one run over that of another, in tokens a second and GPU."""

    name: str
    over: str
    family: str
    measured: float
    predicted: float
    raw: float


def of_fp8(items: Iterable[Judged]) -> list[Ratio]:
    """Each run in fp8 over the run in bf16 of the same recipe, GPUs, batch and layout."""

    def recipe(item: Judged) -> Hashable:
        return item.row.family, item.row.layout, *_columns(item, (*_RECIPE, "gpus", "global_batch"))

    found = []
    for rows in _together(items, recipe):
        plain = [item for item in rows if item.row.precision == "bf16"]
        found += [_ratio(item, plain[0]) for item in rows if "fp8" in item.row.precision and plain]
    return found


def of_scaling(items: Iterable[Judged]) -> list[Ratio]:
    """Each run over the one on the fewest GPUs that has the same settings, and either the same batch or as much a GPU.

    Runs of a series differ in their number of GPUs and copies alone; of several on the fewest, the first is taken.
    """

    def weak(item: Judged) -> Hashable:
        return *_settings(item), "weak", item.row.run.global_batch_size / _gpus(item)

    def strong(item: Judged) -> Hashable:
        return *_settings(item), "strong", item.row.run.global_batch_size

    rows = [item for item in items if {*_SPLIT, *_RECIPE, "gpus", "notes"} <= item.row.line.keys()]
    found = []
    for series in (*_together(rows, weak), *_together(rows, strong)):
        ordered = sorted(series, key=_gpus)
        found += [_ratio(item, ordered[0]) for item in ordered if _gpus(item) > _gpus(ordered[0])]
    return found


def _settings(item: Judged) -> tuple[Hashable, ...]:
    return item.row.family, item.row.precision, *_columns(item, (*_RECIPE, *_SPLIT)), _kernel(item)


def _kernel(item: Judged) -> str:
    return next((word for word in item.row.line["notes"].split(";") if "kernel" in word), "")


def _gpus(item: Judged) -> int:
    return item.row.run.gpus


def _columns(item: Judged, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(item.row.line.get(name, "") for name in names)


def _together(items: Iterable[Judged], key: Callable[[Judged], Hashable]) -> list[list[Judged]]:
    groups = defaultdict[Hashable, list[Judged]](list)
    for item in items:
        groups[key(item)].append(item)
    return list(groups.values())


def _ratio(item: Judged, over: Judged) -> Ratio:
    return Ratio(
        name=item.row.name,
        over=over.row.name,
        family=item.row.family,
        measured=item.row.measured / over.row.measured,
        predicted=item.predicted / over.predicted,
        raw=item.raw / over.raw,
    )
