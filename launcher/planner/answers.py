"""The answers to the questions beside the layouts, as keys of the document of ``launch plan --json``."""

from __future__ import annotations

from typing import Any

from launcher.planner import length
from launcher.planner.largest import Largest
from launcher.planner.result import Layout, Length, Nearest
from launcher.planner.smallest import Smallest, Step


def costs(layout: Layout, asked: Length | None) -> dict[str, Any]:
    """The time of the whole training, and whether it keeps the limit; nothing where nobody has said its length.

    GPU-hours and money are keys of the layout's ``speed``.
    """
    if asked is None:
        return {}
    found = length.cost_of(layout)
    return {"days": None if found is None else found.days, "in_time": length.in_time(layout, asked.days)}


def smallest(found: Smallest) -> dict[str, Any]:
    """The key ``smallest``."""
    return {
        "size": None if found.size is None else found.size.as_dict(),
        "smaller": None if found.smaller is None else _step(found.smaller),
        "larger": None if found.larger is None else _step(found.larger),
        "on_devices": None if found.on_devices is None else found.on_devices.as_dict(),
    }


def _step(step: Step) -> dict[str, Any]:
    """One size, with the speed of its fastest layout."""
    layout, speed = step.layout, None if step.layout is None else step.layout.speed
    cost = None if layout is None else length.cost_of(layout)
    return {
        "size": step.size.as_dict(),
        "lacks": step.lacks,
        "overrides": None if layout is None else list(layout.overrides),
        "tokens_per_second": None if speed is None else speed.tokens_per_second,
        "tokens_per_second_per_gpu": None if speed is None else speed.tokens_per_second_per_gpu,
        "days": None if cost is None else cost.days,
        "gpu_hours": None if cost is None else cost.gpu_hours,
        "price": None if cost is None else cost.price,
    }


def largest(found: Largest) -> dict[str, Any]:
    """The key ``largest``."""
    return {
        "kind": found.kind,
        "value": found.value if found.words else None,
        "overrides": list(found.words),
        "limit": found.limit,
        "larger": [{"overrides": list(each.words), "value": each.value, "lacks": each.lacks} for each in found.larger],
    }


def nearest(found: Nearest) -> dict[str, Any]:
    """The key ``nearest``."""
    closest = found.closest
    return {
        "cluster": None if found.size is None else found.size.as_dict(),
        "overrides": None if found.layout is None else list(found.layout.overrides),
        "closest": None
        if closest is None
        else {"overrides": list(closest.overrides), "lacks_bytes": closest.verdict.excess_bytes},
        "rule": found.rule,
        "fixes": [fix.as_dict() for fix in found.fixes],
    }
