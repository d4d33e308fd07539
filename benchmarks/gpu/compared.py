"""The estimate's answer in the counters that are measured, and how the two compare."""

from __future__ import annotations

from typing import Any

from launcher.estimate.memory.result import MemoryEstimate


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


def ratios(said: dict[str, Any], measured: dict[str, Any]) -> dict[str, float]:
    """Predicted over measured, of every counter that both have."""
    pairs = {name: (value, measured.get(name)) for name, value in said.items() if name != "phases"}
    pairs |= {name: (value, measured["phases"].get(name)) for name, value in said["phases"].items()}
    return {name: round(value / seen, 4) for name, (value, seen) in pairs.items() if seen}
