"""The share of measured runs inside bands that were fitted without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.speed import calibrating
from benchmarks.speed.checking import checked, unseen
from benchmarks.speed.estimating import HeldOut, Judged, constant_of
from benchmarks.speed.families import Family
from launcher.estimate.speed import calibration


def held_out(found: Sequence[Family]) -> list[Family]:
    """The families whose runs have this answer."""
    models = _without(found, calibrating.model_of)
    sources = _without(found, lambda item: item.row.family)

    def answered(item: Judged) -> Judged:
        source = sources[item.row.family]
        return replace(
            item,
            held_out=HeldOut(
                within=_inside(item, constant_of(item, models[calibrating.model_of(item)])),
                checked=_inside(item, checked(item, source)),
                unseen=_inside(item, unseen(item, source)),
            ),
        )

    return [replace(family, items=tuple(map(answered, family.items))) for family in found]


def _without(found: Sequence[Family], key: Callable[[Judged], str]) -> dict[str, calibration.Tables]:
    """Constants and bands for each key, fitted without the runs of that key."""

    def rest(left_out: str) -> list[Family]:
        return [replace(one, items=tuple(item for item in one.items if key(item) != left_out)) for one in found]

    keys = {key(item) for family in found for item in family.items}
    return {one: calibrating.tables(rest(one)) for one in sorted(keys)}


def _inside(item: Judged, constant: calibration.Constant) -> float:
    return float(constant.low <= item.row.measured / (item.raw * constant.value) <= constant.high)
