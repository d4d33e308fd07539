"""The meaning of ``precision=`` for PyTorch's FSDP2 and DDP."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from launcher.estimate.rank.formats import FP32, Dtypes, refined
from launcher.spec import PrecisionSpec, RunSpec


def dtypes(spec: RunSpec) -> Dtypes:
    """FP32 parameters, compute in the word's format, reduction in fp32, no master copy (docs/precision.md).

    FSDP2 casts each gathered shard (``MixedPrecisionPolicy(param_dtype)``), so its gradients arrive in that format;
    DDP runs under ``torch.autocast``, where the fp32 parameters themselves receive fp32 gradients.
    """
    return _dtypes(spec.precision, shard=spec.parallel.shard)


@lru_cache(maxsize=256)
def _dtypes(precision: PrecisionSpec, *, shard: bool) -> Dtypes:
    compute = precision.compute
    if compute == "fp32":
        return refined(FP32, precision)
    if not shard:
        return refined(replace(FP32, compute=compute, autocast=True), precision)
    return refined(replace(FP32, compute=compute, gradients="bf16" if compute == "fp8" else compute), precision)
