"""Properties of a run that the predictors ask for."""

from __future__ import annotations

from benchmarks.estimators import _run
from launcher.base import registry
from launcher.estimate.rank.counts import parameter_counts
from launcher.spec import RunSpec

zero_stage = _run.zero_stage
trains_everything = _run.trains_everything
parameters = _run.parameters


def peak(spec: RunSpec) -> float | None:
    """Dense FLOP/s of the card's matrix units in the format that the run computes in; None where it is not known."""
    hardware = spec.hardware
    by_format = {
        "fp32": hardware.flops_fp32,
        "fp16": hardware.flops_fp16,
        "bf16": hardware.flops_bf16,
        "fp8": hardware.flops_fp8,
        "fp4": hardware.flops_fp4,
    }
    return by_format.get(spec.precision.compute)


def matrix_parameters(spec: RunSpec) -> int:
    """Parameters that a token is multiplied with: of its own experts, and of the token table once (as the head)."""
    model = spec.model
    _, active = parameter_counts(spec, registry.load("families", model.family))
    return active if model.tie_word_embeddings else active - model.vocab_size * model.hidden_size


def speed(spec: RunSpec, step_seconds: float) -> float:
    """Tokens per second of one GPU from the seconds of one step."""
    return spec.global_batch_size * spec.sequence_length / step_seconds / spec.gpus
