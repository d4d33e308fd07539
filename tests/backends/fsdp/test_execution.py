"""How FSDP2's worker executes a step, as the model of speed reads it."""

from __future__ import annotations

from launcher.backends.fsdp.traits import execution
from tests.support.helpers import make_spec


def test_fsdp_reduces_a_block_at_once_and_ddp_in_buckets() -> None:
    cap = "backend.bucket_cap_mb=50"
    assert execution(make_spec("model=tiny", "parallel=fsdp", cap)).bucket_bytes == float("inf")
    assert execution(make_spec("model=tiny", "parallel=ddp", cap)).bucket_bytes == 50 * 2**20
