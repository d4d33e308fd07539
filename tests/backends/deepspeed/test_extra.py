"""``backend.extra``: keys that are handed to DeepSpeed as they are, and those that are not."""

from __future__ import annotations

import pytest

from launcher.backends.deepspeed import warnings
from launcher.backends.deepspeed.options import SETTINGS
from tests.support.deepspeed_specs import GPU, found
from tests.support.helpers import make_spec


@pytest.mark.parametrize(
    ("override", "path", "rule", "way_out"),
    [
        (
            "+backend.extra.zero_optimisation=1",
            "backend.extra.zero_optimisation",
            "DeepSpeed 0.19.8 reads no such key and would ignore it",
            ("+backend.extra.zero_optimization=1",),
        ),
        (
            "+backend.extra.zero_optimization.stage=2",
            "backend.extra.zero_optimization.stage",
            "the setting zero.stage gives it, and the memory estimate reads that setting",
            ("zero.stage=2 +backend.extra.zero_optimization.stage=null",),
        ),
        (
            "+backend.extra.gradient_accumulation_steps=4",
            "backend.extra.gradient_accumulation_steps",
            "the setting train.gradient_accumulation gives it, and the memory estimate reads that setting",
            ("train.gradient_accumulation=4 +backend.extra.gradient_accumulation_steps=null",),
        ),
        (
            "+backend.extra.fp16.enabled=true",
            "backend.extra.fp16.enabled",
            "the setting precision.compute gives it, and the memory estimate reads that setting",
            ("precision=fp16 +backend.extra.fp16.enabled=null",),
        ),
        (
            "+backend.extra.fp16.initial_scale_power=12",
            "backend.extra.fp16.initial_scale_power",
            "the setting precision.initial_loss_scale gives it, and the memory estimate reads that setting",
            ("precision.initial_loss_scale=4096 +backend.extra.fp16.initial_scale_power=null",),
        ),
        (
            "+backend.extra.fp16.loss_scale=0",
            "backend.extra.fp16.loss_scale",
            "the setting precision.loss_scale gives it, and the memory estimate reads that setting",
            ("precision.loss_scale=null +backend.extra.fp16.loss_scale=null",),
        ),
        (
            "+backend.extra.bf16.bf16_optimizer_states=true",
            "backend.extra.bf16.bf16_optimizer_states",
            "the setting precision.optimizer_states gives it, and the memory estimate reads that setting",
            ("precision.master=bf16 precision.optimizer_states=bf16 +backend.extra.bf16.bf16_optimizer_states=null",),
        ),
        (
            "+backend.extra.gradient_clipping=[1]",
            "backend.extra.gradient_clipping",
            "the setting optimizer.clip gives it, and the memory estimate reads that setting",
            ("launch show optimizer",),
        ),
        (
            "+backend.extra.data_types.param_dtype=float8",
            "backend.extra.data_types.param_dtype",
            "the setting precision.compute gives it, and the memory estimate reads that setting",
            ("launch show precision",),
        ),
        (
            "+backend.extra.optimizer.params.eps=1e-6",
            "backend.extra.optimizer.params.eps",
            "the setting optimizer.name gives it, and the memory estimate reads that setting",
            ("optimizer.epsilon=1e-06 +backend.extra.optimizer.params.eps=null",),
        ),
        (
            "+backend.extra.optimizer.type=Lamb",
            "backend.extra.optimizer.type",
            "the setting optimizer.name gives it, and the memory estimate reads that setting",
            (
                "optimizer=adamw +backend.extra.optimizer.type=null",
                "optimizer=sgd +backend.extra.optimizer.type=null",
            ),
        ),
        (
            "+backend.extra.scheduler.type=WarmupLR",
            "backend.extra.scheduler.type",
            "the setting optimizer.schedule gives it, and the memory estimate reads that setting",
            (
                "optimizer.schedule=constant +backend.extra.scheduler.type=null",
                "optimizer.schedule=linear +backend.extra.scheduler.type=null",
                "optimizer.schedule=cosine +backend.extra.scheduler.type=null",
            ),
        ),
        (
            "+backend.extra.hybrid_engine.enabled=true",
            "backend.extra.hybrid_engine",
            "it needs support from the training program, and the launcher's own worker has none",
            ("script=path/to/train.py",),
        ),
        (
            "+backend.extra.zero_optimization.max_live_parameters=5",
            "backend.extra.zero_optimization.max_live_parameters",
            "the setting zero.max_live_parameters gives it, and the memory estimate reads that setting",
            ("zero.max_live_parameters=5 +backend.extra.zero_optimization.max_live_parameters=null",),
        ),
        (
            "+backend.extra.zero_optimization.cpu_offload=true",
            "backend.extra.zero_optimization.cpu_offload",
            "the setting zero.offload_optimizer gives it, and the memory estimate reads that setting",
            ("zero.offload_optimizer=cpu +backend.extra.zero_optimization.cpu_offload=null",),
        ),
        (
            "+backend.extra.zero_optimization.zero_quantized_weights=true",
            "backend.extra.zero_optimization.zero_quantized_weights",
            "the setting zero.quantized_weights gives it, and the memory estimate reads that setting",
            ("zero.quantized_weights=true +backend.extra.zero_optimization.zero_quantized_weights=null",),
        ),
        (
            "+backend.extra.zero_optimization.contiguous_gradients=false",
            "backend.extra.zero_optimization.contiguous_gradients",
            "gradients would be reduced in other buffers than those counted",
            (
                "zero.reduce_bucket_size=50000000 +backend.extra.zero_optimization.contiguous_gradients=null",
                "+backend.extra.zero_optimization.contiguous_gradients=true",
            ),
        ),
        (
            "+backend.extra.zero_optimization.mics_shard_size=8",
            "backend.extra.zero_optimization.mics_shard_size",
            "DeepSpeed 0.19.8 no longer has it: MiCS",
            (
                "parallel=hsdp +backend.extra.zero_optimization.mics_shard_size=null",
                "zero.hpz=8 +backend.extra.zero_optimization.mics_shard_size=null",
                "+backend.extra.zero_optimization.mics_shard_size=-1",
            ),
        ),
        (
            "+backend.extra.zero_optimization.zenflow.topk_ratio=0.1",
            "backend.extra.zero_optimization.zenflow.topk_ratio",
            (
                "ZenFlow keeps moments of selected columns on the GPU, which are not counted, delays other gradients, "
                "and saves neither in a checkpoint (runtime/zenflow)"
            ),
            (
                "zero.offload_optimizer=cpu +backend.extra.zero_optimization.zenflow=null",
                "+backend.extra.zero_optimization.zenflow=null",
            ),
        ),
        (
            "+backend.extra.zero_optimization.offload_optimizer.super_offload=true",
            "backend.extra.zero_optimization.offload_optimizer.super_offload",
            "SuperOffload's moments live in a separate process, which neither the estimate nor a checkpoint covers "
            "(runtime/superoffload)",
            (
                "zero.offload_optimizer=cpu +backend.extra.zero_optimization.offload_optimizer.super_offload=null",
                "+backend.extra.zero_optimization.offload_optimizer.super_offload=false",
            ),
        ),
        (
            "+backend.extra.optimizer.type=OneBitAdam",
            "backend.extra.optimizer.type",
            "DeepSpeed 0.19.8 no longer has 1-bit optimizers; ZeRO 3 can send gradients in 4 bits",
            ("optimizer=adamw +backend.extra.optimizer.type=null",),
        ),
        (
            "+backend.extra.compression_training.weight_quantization=true",
            "backend.extra.compression_training",
            "DeepSpeed 0.19.8 no longer has it",
            ("adapter=qlora +backend.extra.compression_training=null",),
        ),
        (
            "+backend.extra.zero_optimization.new_option=1",
            "backend.extra.zero_optimization.new_option",
            "DeepSpeed 0.19.8 has no such option, so its memory is not counted",
            ("+backend.extra.zero_optimization.new_option=null",),
        ),
        (
            "+backend.extra.prescale_gradients=true",
            "backend.extra.prescale_gradients",
            "DeepSpeed refuses it with ZeRO 3, which reduce-scatters gradients",
            ("+backend.extra.prescale_gradients=false", "zero=1"),
        ),
        (
            "+backend.extra.tensor_parallel.tp_overlap_comm=true",
            "backend.extra.tensor_parallel.tp_overlap_comm",
            "DeepSpeed reads it only with tensor parallelism, which this run does not use",
            ("parallel.tensor=2", "parallel.tensor=4"),
        ),
        (
            "+backend.extra.tensor_parallel.autotp_size=2",
            "backend.extra.tensor_parallel.autotp_size",
            "the setting parallel.tensor gives it, and the memory estimate reads that setting",
            ("parallel.tensor=2 +backend.extra.tensor_parallel.autotp_size=null",),
        ),
        (
            "+backend.extra.bf16=false",
            "backend.extra.bf16",
            "settings give part of this block (bf16.bf16_master_weights_and_grads): set its other keys one by one",
            ("launch show precision",),
        ),
    ],
)
def test_an_extra_key_that_is_unknown_or_has_a_setting_is_refused(
    override: str, path: str, rule: str, way_out: tuple[str, ...]
) -> None:
    assert found("parallel=zero3", override) == {path: (rule, way_out)}


def test_a_script_of_the_user_s_own_may_play_along_with_any_block() -> None:
    assert found("parallel=zero3", "+backend.extra.hybrid_engine.enabled=true", "script=train.py") == {}


def test_a_key_of_tensor_parallelism_goes_through_where_tensors_are_cut() -> None:
    assert found("parallel=zero1", "parallel.tensor=2", "+backend.extra.tensor_parallel.tp_overlap_comm=true") == {}


def test_tensors_are_offered_to_be_cut_only_as_often_as_the_ranks_allow() -> None:
    words = ("parallel=zero1", "cluster.gpus_per_node=6", "+backend.extra.tensor_parallel.tp_overlap_comm=true")
    [(_, ways_out)] = found(*words).values()
    assert ways_out == ("parallel.tensor=2",)


def test_every_setting_that_an_extra_key_points_to_exists() -> None:
    spec = make_spec(*GPU, "parallel=zero2")
    assert SETTINGS
    for setting in SETTINGS.values():
        group, _, key = setting.partition(".")
        assert hasattr(getattr(spec, group), key), setting


def test_a_default_of_deepspeed_s_goes_through_where_another_value_would_not() -> None:
    assert found("parallel=zero3", "+backend.extra.zero_optimization.reduce_scatter=true") == {}
    assert found("parallel=zero2", "+backend.extra.zero_optimization.round_robin_gradients=true") == {}


def test_what_is_handed_through_is_listed() -> None:
    extra = "+backend.extra.zero_optimization.enable_sanity_checks=true"
    rule = (
        "passed to DeepSpeed unchanged and checked only there; no memory depends on it: "
        "zero_optimization.enable_sanity_checks"
    )
    spec = make_spec(*GPU, "parallel=zero2", extra, "optimizer.fused=true")
    assert [(w.path, w.rule, w.way_out) for w in warnings(spec)] == [("backend.extra", rule, ())]
