"""QLoRA beside ZeRO on two CPU ranks: stage 2 leaves packed weights alone, and stage 3 shards their bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.helpers import needs
from tests.support.training import MOE, lines, train_all

needs("deepspeed", "workers need the extra 'deepspeed'")
needs("bitsandbytes", "QLoRA needs the extra 'fsdp'")

EXPERTS = (
    *("model.moe_intermediate_size=64", "checkpointing=full"),
    *("adapter.targets=[q_proj,o_proj]", "optimizer=paged_adamw_8bit"),
)
QLORA = (
    *("model.intermediate_size=128", "adapter=qlora", "adapter.rank=16", "optimizer.lr=1e-2", "precision=bf16"),
    *("parallel=zero2", "train.steps=6"),
)
RUNS = {
    "whole": (*QLORA, "save.every=3", "save.keep=3"),
    "sharded": (*QLORA, "parallel=zero3", "save.every=3", "save.keep=3"),
    "int8": (*QLORA, "adapter.quant_type=int8"),
    "int8_sharded": (*QLORA, "adapter.quant_type=int8", "parallel=zero3"),
    "experts": (*MOE, *QLORA, *EXPERTS),
    "experts_sharded": (*MOE, *QLORA, *EXPERTS, "parallel=zero3", "save.every=3", "save.keep=3"),
}


@pytest.mark.thorough
def test_it_learns_and_goes_on_from_its_checkpoint_with_the_same_losses(tmp_path: Path) -> None:
    train_all(tmp_path, RUNS, ranks=2)
    losses = {name: [line["loss"] for line in lines(tmp_path / name)] for name in RUNS}
    assert all(loss[-1] < loss[0] - 0.03 for loss in losses.values())
    saved = [name for name, words in RUNS.items() if "save.every=3" in words]
    places = {name: tmp_path / name / "checkpoints" / "step-00000003" for name in saved}
    train_all(tmp_path / "left", {name: (*RUNS[name], f"save.load={place}") for name, place in places.items()}, ranks=2)
    for name in places:
        assert [line["loss"] for line in lines(tmp_path / "left" / name)] == losses[name][3:]
