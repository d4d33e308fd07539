"""Runs of backend=fsdp on GPUs, and the errors that refuse them."""

from __future__ import annotations

from launcher.backends.fsdp import check
from tests.support.helpers import make_spec

GPU = ("model=llama3_8b", "hardware=h100_80g", "cluster.gpus_per_node=8", "precision=bf16", "parallel=fsdp")


def found(*overrides: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Rule and ways out of each error, by its path."""
    return {error.path: (error.rule, error.way_out) for error in check(make_spec(*GPU, *overrides))}
