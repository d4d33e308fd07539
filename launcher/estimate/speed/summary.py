"""What a predicted speed comes to for a whole run: GPU-hours, money, and the part ``speed`` of a document."""

from __future__ import annotations

from typing import Any

from launcher.estimate.speed import calibration
from launcher.estimate.speed.result import SpeedEstimate
from launcher.spec import RunSpec

_NAMES: dict[str, str] = {
    "memory_bound": "memory-bound",
    "loss": "loss",
    "recompute": "recomputation",
    "host": "launching kernels",
    "tensor": "tensor parallel",
    "context": "context parallel",
    "expert": "expert parallel",
    "checkpoint": "checkpoints",
    "waiting": "waiting for stragglers",
}
"""Names of parts that are not simply their words."""

_HOUR = 3600

_OF_A_CONSTANT = ("value", "low", "high", "rows", "whose", "here")


def name_of(part: str) -> str:
    """A part of a step as people say it."""
    return _NAMES.get(part, part.replace("_", " "))


def gpu_hours(spec: RunSpec, speed: SpeedEstimate) -> float | None:
    """Hours of all GPUs for the steps of a run; None of a script of the user's own."""
    return None if spec.script is not None else spec.steps * speed.step_seconds * spec.gpus / _HOUR


def price_of(spec: RunSpec, speed: SpeedEstimate) -> float | None:
    """Money for the steps of a run; None where no price is set."""
    hours, each = gpu_hours(spec, speed), spec.cluster.price_per_gpu_hour
    return None if hours is None or each is None else hours * each


def as_dict(spec: RunSpec, speed: SpeedEstimate) -> dict[str, Any]:
    """The part ``speed`` of the document (docs/contract.md)."""
    found, constant = speed.as_dict(), speed.constant
    parts, communication = found.pop("parts"), found.pop("communication")
    return {
        **found,
        "hfu": speed.hfu,
        "gpu_hours": gpu_hours(spec, speed),
        "price": price_of(spec, speed),
        "constant": {name: getattr(constant, name) for name in _OF_A_CONSTANT} | {"calibration": calibration.version()},
        "crowded": speed.crowded,
        "parts": parts,
        "communication": communication,
    }
