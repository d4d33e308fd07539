"""The estimate of a step: what an engine's settings do to it, and what holds for every run."""

from __future__ import annotations

import pytest

from launcher.estimate.speed.calibration import UNCALIBRATED
from launcher.estimate.speed.estimate import estimate
from launcher.estimate.speed.result import SpeedEstimate
from launcher.preflight.assess import parts
from launcher.preflight.findings import errors
from tests.support.helpers import make_spec

NODES = ("hardware=h100_80g", "cluster=slurm", "cluster.nodes=4", "train.sequence_length=4096")


def estimated(*words: str) -> SpeedEstimate:
    spec = make_spec(*NODES, *words)
    assert not errors(spec)
    found = estimate(spec, **parts(spec), measured=UNCALIBRATED)
    assert found is not None
    return found


FASTER_FIRST = {
    "DeepSpeed overlaps below stage 3 only where it is asked to": (
        ("model=llama3_8b", "parallel=zero2"),
        "zero.overlap_comm=true",
        "zero.overlap_comm=null",
    ),
    "and at stage 3 unless it is forbidden": (
        ("model=llama3_70b", "parallel=zero3"),
        "zero.overlap_comm=null",
        "zero.overlap_comm=false",
    ),
    "a second copy of the shards inside a node": (
        ("model=llama3_70b", "parallel=zero3"),
        "zero.hpz=8",
        "zero.hpz=1",
    ),
    "larger buckets": (
        ("model=llama3_8b", "parallel=zero2"),
        "zero.reduce_bucket_size=500000000",
        "zero.reduce_bucket_size=1000000",
    ),
    "DDP's buckets": (("model=1b", "parallel=ddp"), "backend.bucket_cap_mb=25", "backend.bucket_cap_mb=0.1"),
    "a loss in one kernel": (("model=llama3_8b", "parallel=tp"), "train.loss=fused", "train.loss=full"),
    "a loss that is not computed again": (
        ("model=llama3_8b", "parallel=fsdp"),
        "train.loss=full",
        "train.loss=chunked",
    ),
    "attention alone computed again": (
        ("model=llama3_8b", "parallel=tp", "checkpointing=selective"),
        "checkpointing.modules=[core_attn]",
        "checkpointing.modules=[core_attn,mlp]",
    ),
    "norms alone computed again": (
        ("model=llama3_8b", "parallel=tp", "checkpointing=selective"),
        "checkpointing.modules=[layernorm]",
        "checkpointing.modules=[mlp]",
    ),
    "per operator less than all": (
        ("model=llama3_8b", "parallel=fsdp"),
        "checkpointing=selective",
        "checkpointing=full",
    ),
    "per operator more than nothing": (
        ("model=llama3_8b", "parallel=fsdp"),
        "checkpointing=none",
        "checkpointing=selective",
    ),
    "gradients reduced after the last micro-batch alone": (
        ("model=llama3_8b", "parallel=hsdp", "parallel.replicate=4", "train.global_batch_size=256"),
        "backend.micro_step_sync=false",
        "backend.micro_step_sync=true",
    ),
    "Megatron's overlap": (
        ("model=llama3_8b", "parallel=tp", "zero=1"),
        "backend.extra.overlap-grad-reduce=true",
        "backend.extra.overlap-grad-reduce=false",
    ),
    "its kernels": (
        ("model=llama3_8b", "parallel=tp"),
        "backend.extra.no-rope-fusion=false",
        "backend.extra.no-rope-fusion=true",
    ),
    "weights that stay on the device": (
        ("model=llama3_8b", "parallel=zero3"),
        "zero.offload_parameters=none",
        "zero.offload_parameters=cpu",
    ),
    "a faster network": (
        ("model=llama3_70b", "parallel=fsdp"),
        "cluster.network_bandwidth=50e9",
        "cluster.network_bandwidth=5e9",
    ),
}


@pytest.mark.parametrize("case", FASTER_FIRST)
def test_a_setting_by_which_a_step_does_less_or_hides_more_makes_it_shorter(case: str) -> None:
    words, faster, slower = FASTER_FIRST[case]
    assert estimated(*words, faster).step_seconds < estimated(*words, slower).step_seconds


def test_four_bit_weights_are_gathered_as_they_are() -> None:
    bits = {
        name: next(
            term.values["t_gather"]
            for term in estimated("model=llama3_8b", "parallel=fsdp", f"adapter={name}").terms
            if term.part == "data"
        )
        for name in ("lora", "qlora")
    }
    assert 0.2 < bits["qlora"] / bits["lora"] < 0.6


@pytest.mark.parametrize("degree", [1, 2, 8])
def test_the_models_own_flops_do_not_depend_on_how_it_is_split(degree: int) -> None:
    whole = estimated("model=llama3_8b", "parallel=zero1", "train.global_batch_size=64")
    split = estimated("model=llama3_8b", "parallel=zero1", f"parallel.tensor={degree}", "train.global_batch_size=64")
    assert split.model_flops == whole.model_flops
    assert split.hardware_flops == pytest.approx(whole.hardware_flops, rel=0.02)


def test_experts_are_gathered_among_the_ranks_that_share_them() -> None:
    words = ("model=mixtral_8x7b", "parallel=ep", "parallel.expert=8", "train.global_batch_size=64")
    once = estimated(*words, "zero=1")
    assert {term.group for term in once.terms if term.part == "data"} == {"data parallel", "data parallel, experts"}
    assert estimated(*words, "zero=3").step_seconds > once.step_seconds


@pytest.mark.parametrize(
    "words",
    [
        ("model=llama3_70b", "parallel=3d", "parallel.tensor=4", "parallel.pipeline=4", "checkpointing=full"),
        ("model=mixtral_8x7b", "parallel=ep", "parallel.expert=8"),
        ("model=7b", "parallel=zero3", "zero.offload_optimizer=cpu", "zero.offload_parameters=cpu"),
        ("model=llama3_8b", "parallel=fsdp_cp", "parallel.context=2", "save.every=10"),
        ("model=1b", "parallel=ulysses", "parallel.ulysses=4", "precision=fp16"),
    ],
    ids=" ".join,
)
def test_the_parts_that_nothing_hides_add_up_to_the_step(words: tuple[str, ...]) -> None:
    found = estimated(*words)
    assert all(0 <= term.exposed_seconds <= term.seconds * (1 + 1e-9) for term in found.terms)
    assert sum(term.exposed_seconds for term in found.terms) == pytest.approx(found.step_seconds)
    assert 0 < found.mfu < 0.8
    assert found.hfu >= found.mfu


ROWS = (
    "model=7b",
    "data=rows",
    "data.path=rows.jsonl",
    "parallel=fsdp",
    "precision=bf16",
    "train.sequence_length=1024",
)


def test_a_reference_model_costs_its_forward_pass_and_its_gathering() -> None:
    dpo, alone = estimated(*ROWS, "task=dpo"), estimated(*ROWS, "task=dpo", "task.precompute_reference=true")
    reward = estimated(*ROWS, "task=reward")
    assert alone.step_seconds == pytest.approx(reward.step_seconds)
    [term] = [one for one in dpo.terms if one.part == "reference"]
    assert term.seconds == pytest.approx(dpo.stages[0].forward_seconds)
    [gathered] = [one for one in dpo.terms if "without gradients" in one.what and one.part == "data"]
    assert gathered.exposed_seconds == gathered.seconds  # Its one group is whole before anything is computed.
    assert dpo.step_seconds > alone.step_seconds + term.seconds
    adapter = estimated(*ROWS, "task=dpo", "adapter=lora")
    [hidden] = [one for one in adapter.terms if "without gradients" in one.what and one.part == "data"]
    assert hidden.exposed_seconds < hidden.seconds  # The model itself with its adapter off, a block at a time.


def test_kto_passes_other_answers_through_both_models() -> None:
    rows = (*ROWS, "task=kto", "train.micro_batch_size=2")
    kto = estimated(*rows)
    [term] = [one for one in kto.terms if one.part == "reference"]
    assert term.seconds == pytest.approx(3 * kto.stages[0].forward_seconds)
    [term] = [one for one in estimated(*rows, "task.loss=apo_zero_unpaired").terms if one.part == "reference"]
    assert term.seconds == pytest.approx(kto.stages[0].forward_seconds)
