"""The answer as the document of ``launch plan --json`` (docs/contract/documents.md)."""

import shlex
from dataclasses import asdict

from launcher.base.files import JsonObject
from launcher.planner import length, wording
from launcher.planner.largest import Largest
from launcher.planner.layouts import Layout, Length, Nearest, Plan
from launcher.planner.smallest import Smallest, Step


def as_dict(plan: Plan) -> JsonObject:
    """The whole document."""
    return {
        "schema": 1,
        "plan": {
            "words": list(plan.words),
            "assumptions": [asdict(each) for each in plan.assumptions],
            "finished": plan.finished,
            **asdict(plan.counts),
            "seconds": plan.seconds,
            "layouts": [layout_as_dict(plan, each) for each in plan.layouts],
            "others": [layout_as_dict(plan, each) for each in plan.others],
            "tight": None if plan.tight is None else layout_as_dict(plan, plan.tight),
            "untried": None if plan.untried is None else layout_as_dict(plan, plan.untried),
            "days": None if plan.length is None else plan.length.days,
            "nearest": None if plan.nearest is None else nearest_as_dict(plan.nearest),
        },
    }


def layout_as_dict(plan: Plan, layout: Layout) -> JsonObject:
    """One layout; ``line`` is the command to paste."""
    return {
        "overrides": list(layout.overrides),
        "line": line(plan, layout),
        "layout": wording.layout(layout.spec),
        "verdict": layout.verdict.name,
        "speed": None if layout.speed is None else layout.speed.as_dict(layout.spec),
        "used_bytes": layout.verdict.used_bytes,
        "capacity_bytes": layout.verdict.capacity_bytes,
        "host_bytes": layout.verdict.host_bytes,
        "chance": layout.verdict.chance,
        "loses": layout.loses,
        "unmeasured": list(layout.unmeasured),
        **_costs(layout, plan.length),
    }


def line(plan: Plan, layout: Layout) -> str:
    """The command that starts a layout, for a shell."""
    return shlex.join(("launch", *plan.single, *layout.overrides))


def _costs(layout: Layout, asked: Length | None) -> JsonObject:
    """The time of the whole training, and whether it meets the limit; empty if its length is not set."""
    if asked is None:
        return {}
    found = length.cost_of(layout)
    return {"days": None if found is None else found.days, "in_time": length.in_time(layout, asked.days)}


def smallest_as_dict(found: Smallest) -> JsonObject:
    """The key ``smallest``."""
    return {
        "size": None if found.size is None else found.size.as_dict(),
        "smaller": None if found.smaller is None else _step(found.smaller),
        "larger": None if found.larger is None else _step(found.larger),
        "on_devices": None if found.on_devices is None else found.on_devices.as_dict(),
    }


def _step(step: Step) -> JsonObject:
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


def largest_as_dict(found: Largest) -> JsonObject:
    """The key ``largest``."""
    return {
        "kind": found.kind,
        "value": found.value if found.words else None,
        "overrides": list(found.words),
        "limit": found.limit,
        "larger": [{"overrides": list(each.words), "value": each.value, "lacks": each.lacks} for each in found.larger],
    }


def nearest_as_dict(found: Nearest) -> JsonObject:
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
