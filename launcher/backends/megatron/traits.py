"""The implementation that runs under Megatron-LM, as far as memory depends on it."""

from __future__ import annotations

from launcher.backends.megatron.dtypes import dtypes
from launcher.backends.megatron.implementation import fsdp, implementation, reads_gradients_as_they_are
from launcher.base.units import DTYPE_BYTES
from launcher.estimate.rank.engine import EngineTraits
from launcher.spec import RunSpec

VOCABULARY_MULTIPLE = 128
"""Megatron-LM's default of ``--make-vocab-size-divisible-by``, times the tensor-parallel degree."""


def engine(spec: RunSpec) -> EngineTraits:
    """Megatron-core's modules; gradients live in one permanent buffer; the loss is vocabulary-parallel."""
    meaning, how = dtypes(spec), implementation(spec)
    size = DTYPE_BYTES["bf16" if meaning.compute == "fp8" else meaning.compute]
    return EngineTraits(
        library="megatron",
        size=size,
        residual_size=size,
        sequence_length=spec.sequence_length,
        scores=how.attention == "unfused",
        softmax_size=4 if how.wide_softmax else None,
        # Of a micro-batch of one sequence the two layouts are the same.
        attention_copy=how.attention == "flash" and spec.micro_batch_size > 1,
        expert_outputs=how.deterministic and not spec.backend.argument("moe-permute-fusion"),
        cpu=spec.hardware.device == "cpu",
        vocabulary_multiple=vocabulary_multiple(spec) * spec.parallel.tensor,
        gradients_stay=True,
        vocabulary_parallel=True,
        master_size=_master_size(spec),
    )


def _master_size(spec: RunSpec) -> int | None:
    """Of an fp32 master copy beside bf16 parameters the precision-aware optimizer keeps the 16 bits that they lack.

    ``store_param_remainders`` (``optimizer/distrib_optimizer.py``, Transformer Engine 2.1 on). Megatron-FSDP has a
    buffer for all of it.
    """
    meaning = dtypes(spec)
    halves = (meaning.parameters, meaning.master) == ("bf16", "fp32")
    return 2 if halves and reads_gradients_as_they_are(spec) and not fsdp(spec) else None


def vocabulary_multiple(spec: RunSpec) -> int:
    """The rows of one tensor-parallel rank are a multiple of ``--make-vocab-size-divisible-by``."""
    return spec.backend.count("make-vocab-size-divisible-by") or VOCABULARY_MULTIPLE
