"""The estimate in the measured counters, and ratios of the two."""

from __future__ import annotations

from typing import Any

from launcher.estimate.memory.result import MemoryEstimate
from launcher.preflight import assess, pricing, verdict
from launcher.spec import RunSpec


def predicted(estimate: MemoryEstimate, world: int) -> dict[str, Any]:
    """The estimate in the counters that are measured.

    A rank whose peers do not exist has no communicator, so ``device_bytes`` is without them.
    """
    peak = estimate.peak
    absent = sum(pile.bytes for pile in estimate.piles if pile.pile == "communicators") if world > 1 else 0
    return {
        "static_bytes": estimate.static_bytes,
        "phases": dict(estimate.phases),
        "peak_allocated_bytes": peak.allocated_bytes,
        "peak_reserved_bytes": peak.reserved_bytes,
        "device_bytes": peak.device_bytes - absent,
    }


def predicted_speed(spec: RunSpec, estimate: MemoryEstimate) -> dict[str, float | None]:
    """Seconds of a step that ``launch check`` predicts.

    None on a CPU, and of a larger world, whose collectives do nothing here.
    """
    if spec.gpus > 1:
        return {"step_seconds": None}
    speed = pricing.predicted(spec, assess.parts, verdict.judge(spec, estimate)).speed
    return {"step_seconds": None if speed is None else speed.step_seconds}


def ratios(said: dict[str, Any], measured: dict[str, Any]) -> dict[str, float]:
    """Predicted over measured, for every counter that both have."""
    pairs = {name: (value, measured.get(name)) for name, value in said.items() if name.endswith("_bytes")}
    pairs |= {name: (value, measured["phases"].get(name)) for name, value in said["phases"].items()}
    pairs["step_seconds"] = (said.get("step_seconds"), measured.get("step_seconds_median"))
    return {name: round(value / seen, 4) for name, (value, seen) in pairs.items() if value is not None and seen}
