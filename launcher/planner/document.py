"""The answer as the document of ``launch plan --json`` (docs/contract.md)."""

from __future__ import annotations

import shlex
from typing import Any

from launcher.planner import wording
from launcher.planner.result import Layout, Plan
from launcher.preflight import speed_line


def as_dict(plan: Plan) -> dict[str, Any]:
    """The whole document."""
    counts = plan.counts
    return {
        "schema": 1,
        "plan": {
            "words": list(plan.words),
            "assumptions": [{"override": each.override, "why": each.why} for each in plan.assumptions],
            "finished": plan.finished,
            "considered": counts.considered,
            "invalid": counts.invalid,
            "unfit": counts.unfit,
            "slower": counts.slower,
            "seconds": plan.seconds,
            "layouts": [layout_as_dict(plan, each) for each in plan.layouts],
            "others": [layout_as_dict(plan, each) for each in plan.others],
            "tight": None if plan.tight is None else layout_as_dict(plan, plan.tight),
            "nearest": None,
        },
    }


def layout_as_dict(plan: Plan, layout: Layout) -> dict[str, Any]:
    """One layout; ``line`` is what to paste."""
    return {
        "overrides": list(layout.overrides),
        "line": line(plan, layout),
        "layout": wording.layout(layout.spec),
        "verdict": layout.verdict.name,
        "speed": None if layout.speed is None else speed_line.as_dict(layout.spec, layout.speed),
        "used_bytes": layout.verdict.used_bytes,
        "capacity_bytes": layout.verdict.capacity_bytes,
        "loses": layout.loses,
    }


def line(plan: Plan, layout: Layout) -> str:
    """The command that starts a layout, for a shell."""
    return shlex.join(("launch", *plan.single, *layout.overrides))
