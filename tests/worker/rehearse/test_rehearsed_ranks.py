"""A rank that rehearses alone has the memory of the same rank among the others (CPU, live tensors)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rehearsing import compared, error

WITHIN = 0.01
"""Of each phase's peak, as promised; what is seen is a few bytes."""

RUNS = {
    "fsdp": ("parallel=fsdp", "precision=bf16", "train.global_batch_size=32"),
    "ddp": ("parallel=ddp", "train.global_batch_size=16"),
    "tensor": ("parallel=fsdp_tp",),
    "pipeline": ("parallel=fsdp_pp", "train.global_batch_size=16"),
    "zero1": ("parallel=zero1", "train.global_batch_size=16", "zero.reduce_bucket_size=100000"),
    "zero3": ("parallel=zero3", "train.global_batch_size=16", "zero.reduce_bucket_size=100000"),
    "stages": ("parallel=pp", "backend=deepspeed", "zero.reduce_bucket_size=100000"),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_rehearsed_rank_of_four_has_the_peaks_of_the_same_rank_in_the_real_run(tmp_path: Path, name: str) -> None:
    found = compared(tmp_path, RUNS[name], ranks=4, which=(3,), within=WITHIN)
    assert set(found[3]) == {"load", "forward", "backward", "optimizer", "static"}
    assert {phase: pair for phase, pair in found[3].items() if error(*pair) > WITHIN} == {}
