"""Bytes that a parameter takes, as ``launch check --explain`` prints their sum: 16, 20 and 10 of published recipes."""

from __future__ import annotations

import pytest

from launcher.preflight import assess, findings
from tests.support.adapters import first_rank
from tests.support.helpers import make_spec

ONE = ("model=llama2_7b", "hardware=h100_80g", "cluster.gpus_per_node=1", "precision=bf16", "train.micro_batch_size=1")
STATES = ("parameters", "gradients", "master_weights", "optimizer_states")


@pytest.mark.parametrize(
    ("size", "overrides"),
    [
        # ZeRO, arXiv:1910.02054, section 3.1: 2 + 2 + 12 bytes of mixed precision with Adam.
        (16, ("parallel=ddp", "backend=deepspeed", "zero=0")),
        # With fp32 gradients beside the module's own (DeepSpeed's BF16_Optimizer).
        (20, ("parallel=zero1", "precision.accumulate=fp32")),
        # Moments of a byte each and the bits that a bf16 parameter lacks (Megatron-LM's precision-aware optimizer).
        (10, ("parallel=tp", "parallel.tensor=1", "parallel.sequence=false", "precision.optimizer_states=fp8")),
    ],
)
def test_a_parameter_takes_the_bytes_that_its_recipe_is_known_for(size: int, overrides: tuple[str, ...]) -> None:
    spec = make_spec(*ONE, *overrides)
    assert [error for error in findings.errors(spec) if error.path.startswith(("precision", "optimizer"))] == []
    rank = first_rank(spec)
    held = sum(term.bytes for term in rank.at("clip") if term.pile in STATES)
    assert held / rank.model.elements.trained == pytest.approx(size, rel=0.001)


def test_a_7b_fine_tuned_with_4_bit_weights_and_a_paged_optimizer_fits_24_gb() -> None:
    spec = make_spec("recipe=llama2_7b_qlora_1x24g", "model.weights=path/to/model")
    assert (spec.adapter.name, spec.optimizer.name) == ("qlora", "paged_adamw_8bit")
    assert assess.estimated(spec).peak.device_bytes < 24e9
