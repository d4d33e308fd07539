"""Shared by the tests of adapters: the linears of a block, and the counted rank of a model with adapters."""

from __future__ import annotations

from typing import Any

from launcher.base import registry
from launcher.estimate.memory.estimate import RankTerms, rank_terms
from launcher.spec import RunSpec

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def modules(spec: RunSpec) -> dict[str, Any]:
    return {
        "family": registry.load("families", spec.model.family),
        "strategies": [registry.load("strategies", name) for name in registry.names("strategies")],
        "backend": registry.load("backends", spec.backend.name),
    }


def first_rank(spec: RunSpec) -> RankTerms:
    return rank_terms(spec, **modules(spec))[0]
