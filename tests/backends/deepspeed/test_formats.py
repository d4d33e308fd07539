"""Mixes of number formats that DeepSpeed lacks."""

from __future__ import annotations

import pytest

from launcher.backends.deepspeed import check
from tests.support.deepspeed_specs import found
from tests.support.helpers import make_spec


@pytest.mark.parametrize(
    ("overrides", "path", "rule", "way_out"),
    [
        (
            ("parallel=zero2", "precision=fp8"),
            "precision.compute",
            "this version of backend=deepspeed computes in bf16, fp16 or fp32",
            ("precision=bf16", "backend=megatron"),
        ),
        (
            ("parallel=zero2", "precision.parameters=fp32"),
            "precision.parameters",
            "DeepSpeed casts the whole module: parameters have the compute format, bf16",
            ("precision.parameters=null", "precision=fp32"),
        ),
        (
            ("parallel=zero2", "precision.gradients=fp32"),
            "precision.gradients",
            "DeepSpeed casts the whole module: gradients have the compute format, bf16",
            ("precision.gradients=null", "precision=fp32"),
        ),
        (
            ("parallel=zero0", "precision=fp32", "precision.reduce=bf16"),
            "precision.reduce",
            "without ZeRO, fp32 gradients are reduced in fp32",
            ("precision.reduce=null", "zero=1"),
        ),
        (
            ("parallel=zero0", "precision.accumulate=fp32"),
            "precision.accumulate",
            "without ZeRO, bf16 gradients are accumulated in bf16 (unsupported mix, runtime/engine.py)",
            ("precision.accumulate=null", "zero=1"),
        ),
        (
            ("parallel=zero2", "precision.accumulate=fp16"),
            "precision.accumulate",
            "gradients in bf16 are accumulated in bf16 or fp32",
            ("precision.accumulate=null", "precision.accumulate=fp32"),
        ),
        (
            ("parallel=zero2", "precision.optimizer_states=bf16"),
            "precision.optimizer_states",
            "master weights and optimizer states are both fp32, or both bf16 with bf16 parameters",
            (
                *("precision.master=null", "precision.optimizer_states=null"),
                "precision.master=bf16 precision.optimizer_states=bf16",
            ),
        ),
        (
            ("parallel=zero2", "precision.master=none"),
            "precision.master",
            "master weights and optimizer states are both fp32, or both bf16 with bf16 parameters",
            (
                *("precision.master=null", "precision.optimizer_states=null"),
                "precision.master=bf16 precision.optimizer_states=bf16",
            ),
        ),
        (
            ("parallel=zero0", "precision.master=bf16", "precision.optimizer_states=bf16"),
            "precision.master",
            "bf16 master weights need ZeRO",
            ("zero=1", "precision.master=null"),
        ),
        (
            (
                "parallel=zero2",
                "precision.master=bf16",
                "precision.optimizer_states=bf16",
                "zero.offload_optimizer=cpu",
            ),
            "precision.master",
            "this version does not translate offloaded bf16 optimizer states",
            ("precision.master=null", "zero.offload_optimizer=none"),
        ),
        (
            ("parallel=zero2", "precision=fp32", "precision.optimizer_states=bf16"),
            "precision.optimizer_states",
            "in fp32 the parameters themselves are the master weights, and the states are fp32",
            ("precision.optimizer_states=null", "precision=bf16"),
        ),
        (
            ("parallel=zero0", "precision=fp16"),
            "precision.compute",
            "without ZeRO, DeepSpeed 0.19.8 divides fp16 gradients by a loss scale that it never multiplied in",
            ("zero=1", "precision=bf16"),
        ),
        (
            ("parallel=zero2", "precision=fp16", "precision.initial_loss_scale=1000"),
            "precision.initial_loss_scale",
            "DeepSpeed takes only a power of two (initial_scale_power)",
            ("precision.initial_loss_scale=1024", "precision.initial_loss_scale=null"),
        ),
    ],
)
def test_a_mix_of_number_formats_that_deepspeed_lacks_is_refused(
    overrides: tuple[str, ...], path: str, rule: str, way_out: tuple[str, ...]
) -> None:
    assert found(*overrides) == {path: (rule, way_out)}


def test_fp16_on_cpu_ranks_is_refused_since_few_processors_compute_in_it() -> None:
    errors = list(check(make_spec("model=tiny", "parallel=zero2", "precision=fp16")))
    assert [(error.path, error.rule, error.way_out) for error in errors] == [
        (
            "precision.compute",
            "DeepSpeed's CPU accelerator supports fp16 only on processors that compute in it (AVX512-FP16)",
            ("precision=bf16", "precision=fp32"),
        )
    ]
