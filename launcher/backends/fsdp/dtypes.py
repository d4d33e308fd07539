"""The meaning of ``precision=`` for PyTorch's FSDP2 and DDP."""

from __future__ import annotations

from dataclasses import replace

from launcher.rank.formats import FP32, Dtypes, refined
from launcher.spec import RunSpec


def dtypes(spec: RunSpec) -> Dtypes:
    """FP32 parameters, compute in the word's format, reduction in fp32, no master copy (docs/precision.md).

    FSDP2 casts each gathered shard (``MixedPrecisionPolicy(param_dtype)``), so its gradients arrive in that format;
    DDP runs under ``torch.autocast``, where the fp32 parameters themselves receive fp32 gradients.
    """
    compute = spec.precision.compute
    if compute == "fp32":
        return refined(FP32, spec.precision)
    if not spec.parallel.shard:
        return refined(replace(FP32, compute=compute, autocast=True), spec.precision)
    return refined(replace(FP32, compute=compute, gradients="bf16" if compute == "fp8" else compute), spec.precision)
