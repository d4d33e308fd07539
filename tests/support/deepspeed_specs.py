"""Runs of backend=deepspeed on GPUs, and the errors that refuse them."""

from __future__ import annotations

from launcher.backends.deepspeed import check
from tests.support.helpers import make_spec

GPU = ("model=7b", "hardware=h100_80g", "cluster.gpus_per_node=8")


def found(*overrides: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Rule and ways out of each error, by its path."""
    return {error.path: (error.rule, error.way_out) for error in check(make_spec(*GPU, *overrides))}
