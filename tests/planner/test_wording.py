"""A layout in the field's words."""

from __future__ import annotations

import pytest

from launcher.base.terminal import filled
from launcher.planner import wording
from tests.support.helpers import make_spec
from tests.support.layouts import MEGATRON, WORDS


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("parallel=fsdp",), "FSDP · dp 16 · micro-batch 1"),
        (("parallel=fsdp", "zero.stage=2"), "FSDP · no resharding · dp 16 · micro-batch 1"),
        (("parallel=hsdp", "parallel.replicate=2"), "HSDP · 2 replicas · dp 16 · micro-batch 1"),
        (("parallel=ddp", "train.micro_batch_size=2"), "DDP · dp 16 · micro-batch 2"),
        (
            ("parallel=zero3", "zero.hpz=8", "parallel.ulysses=2"),
            "DeepSpeed · ZeRO-3 · hpz 8 · ulysses 2 · dp 8 · micro-batch 1",
        ),
        (
            ("parallel=zero3", "zero.offload_optimizer=cpu", "zero.offload_parameters=cpu"),
            "DeepSpeed · ZeRO-3 · parameters and optimizer on the host · dp 16 · micro-batch 1",
        ),
        (
            ("parallel=zero3", "zero.offload_optimizer=cpu", "zero.offload_parameters=nvme"),
            "DeepSpeed · ZeRO-3 · optimizer on the host · parameters on the host's NVMe · dp 16 · micro-batch 1",
        ),
        (
            (*MEGATRON, "parallel.tensor=2", "parallel.sequence=true", "parallel.pipeline=4",
             "parallel.virtual_pipeline=4",
             "parallel.schedule=interleaved", "checkpointing=full", "train.loss=fused", "train.allocator=expandable"),
            "Megatron · ZeRO-1 · tp 2 with sp · pp 4 x 4 chunks · dp 2 · micro-batch 1 · full recompute · fused loss"
            " · expandable allocator",
        ),
        (
            ("backend=megatron", "zero.stage=0", "parallel.pipeline=16", "parallel.schedule=zero_bubble",
             "parallel.first_stage_layers=1", "parallel.last_stage_layers=3"),
            "Megatron · ZeRO-0 · pp 16 (zero bubble) · ends of 1 and 3 layers · micro-batch 1",
        ),
        (
            ("backend=megatron", "zero.stage=3", "parallel.context=2"),
            "Megatron-FSDP · ZeRO-3 · cp 2 · dp 8 · micro-batch 1",
        ),
        (
            (*MEGATRON, "model=mixtral_8x7b", "parallel.tensor=2", "parallel.expert=8", "parallel.expert_tensor=1"),
            "Megatron · ZeRO-1 · tp 2 · ep 8 · etp 1 · dp 8 · micro-batch 1",
        ),
    ],
)  # fmt: skip
def test_a_layout_is_told_as_its_engines_users_call_it(overrides: tuple[str, ...], said: str) -> None:
    assert wording.layout(make_spec(*WORDS, *overrides)) == said


def test_a_line_is_broken_behind_the_parts_of_a_layout_alone() -> None:
    parts = ("DeepSpeed", "ZeRO-3", "parameters and optimizer on the host", "dp 16")
    lines = filled(parts, 44, wording.BETWEEN, " ", "   ")
    assert lines == [" DeepSpeed · ZeRO-3 ·", "   parameters and optimizer on the host ·", "   dp 16"]
    assert filled((), 40, wording.BETWEEN) == []
