"""The answer of the pre-flight as the document of ``launch check --json`` (docs/contract.md).

It has every key in any case, null where an invalid run has no answer.
"""

from __future__ import annotations

from collections.abc import Iterable

from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.estimate.speed import summary
from launcher.preflight.assess import Assessment
from launcher.spec import RunSpec

_FIGURES = ("parameters", "static_bytes", "peak", "phases", "piles", "ranks", "host", "disk")

_NOTHING = dict.fromkeys(("spec_hash", "gpu", "world", *_FIGURES, "fixes", "speed", "data", "rehearsed"))


def invalid_as_json(errors: Iterable[ConfigError], warnings: Iterable[ConfigError] = ()) -> JsonObject:
    """The document of a configuration that is wrong: its errors, and null for the rest."""
    return {
        "schema": 1,
        "verdict": "invalid",
        "warnings": [warning.as_dict() for warning in warnings],
        "errors": [error.as_dict() for error in errors],
        **_NOTHING,
    }


def as_json(assessment: Assessment) -> JsonObject:
    """The document of ``launch check --json`` (docs/contract.md)."""
    spec, estimate = assessment.spec, assessment.estimate
    if assessment.errors:
        return invalid_as_json(assessment.errors, assessment.warnings)
    return {
        "schema": 1,
        "verdict": assessment.verdict.name,
        "spec_hash": spec.hash,
        "warnings": [warning.as_dict() for warning in assessment.warnings],
        "errors": [],
        "gpu": {"name": spec.hardware.name, "memory_bytes": spec.rank_memory_bytes},
        "world": world_as_json(spec),
        **(dict.fromkeys(_FIGURES) if estimate is None else estimate.as_dict()),
        "disk": None if assessment.saves is None else assessment.saves.as_dict(),
        "fixes": [fix.as_dict() for fix in assessment.fixes],
        "speed": None if assessment.speed is None else summary.as_dict(spec, assessment.speed),
        "data": None if assessment.data is None else assessment.data.as_dict(),
        "rehearsed": None if assessment.rehearsed is None else assessment.rehearsed.as_dict(spec),
    }


def world_as_json(spec: RunSpec) -> dict[str, int]:
    """The degrees of the world and the micro-batches of a step."""
    world = spec.world
    names = ("gpus", "data", "tensor", "pipeline", "context", "expert", "gradient_accumulation")
    return {name: getattr(world, name) for name in names}
