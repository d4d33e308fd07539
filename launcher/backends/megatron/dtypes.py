"""Megatron-core's meaning of ``precision=``."""

from __future__ import annotations

from launcher.rank.formats import FP32, Dtypes, refined
from launcher.spec import Dtype, RunSpec


def dtypes(spec: RunSpec) -> Dtypes:
    """Parameters in the word's format, fp32 main gradients for bf16, fp32 master and moments (docs/precision.md).

    For fp16 the gradients stay in fp16: ``--accumulate-allreduce-grads-in-fp32`` is implied by ``--bf16`` alone
    (Megatron-LM ``training/arguments.py``).
    """
    compute = spec.precision.compute
    if compute == "fp32":
        return refined(FP32, spec.precision)
    held: Dtype = "fp16" if compute == "fp16" else "bf16"
    main: Dtype = "fp16" if compute == "fp16" else "fp32"
    meaning = Dtypes(
        parameters=held,
        compute=compute,
        gradients=main,
        accumulate=main,
        master="fp32",
        optimizer_states="fp32",
        reduce=main,
    )
    return refined(meaning, spec.precision)
