"""Megatron-core's meaning of ``precision=``."""

from __future__ import annotations

from launcher.estimate.rank.formats import Dtypes, beside_master
from launcher.spec import RunSpec


def dtypes(spec: RunSpec) -> Dtypes:
    """Parameters in the word's format, fp32 main gradients for bf16, fp32 master and moments (docs/precision.md).

    For fp16 the gradients stay in fp16: ``--accumulate-allreduce-grads-in-fp32`` is implied by ``--bf16`` alone
    (Megatron-LM ``training/arguments.py``).
    """
    if spec.precision.compute == "fp16":
        return beside_master(spec.precision, "fp16", gradients="fp16")
    return beside_master(spec.precision, "bf16", gradients="fp32")
