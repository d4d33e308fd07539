"""How FSDP2's worker executes a step, as the model of speed reads it, and what a compiler changes in it."""

from __future__ import annotations

from launcher.backends.fsdp import warnings
from launcher.backends.fsdp.traits import execution
from tests.support.fsdp_specs import GPU
from tests.support.helpers import make_spec


def test_fsdp_reduces_a_block_at_once_and_ddp_in_buckets() -> None:
    cap = "backend.bucket_cap_mb=50"
    assert execution(make_spec("model=tiny", "parallel=fsdp", cap)).bucket_bytes == float("inf")
    assert execution(make_spec("model=tiny", "parallel=ddp", cap)).bucket_bytes == 50 * 2**20


def test_a_compiler_that_chooses_what_is_recomputed_is_warned_of() -> None:
    (warning,) = warnings(make_spec(*GPU, "train.compile=true", "checkpointing=selective"))
    assert warning.path == "train.compile"
    assert (
        warning.rule == "inside compiled blocks the compiler decides what to recompute, from the same list of operators"
    )
    assert list(warnings(make_spec(*GPU))) == []
