"""DeepSpeed's meaning of ``precision=``."""

from __future__ import annotations

from launcher.rank.formats import FP32, Dtypes, refined
from launcher.spec import RunSpec


def dtypes(spec: RunSpec) -> Dtypes:
    """Parameters, gradients and their reduction in the word's format, fp32 master and moments (docs/precision.md).

    ``accumulate`` is DeepSpeed's own default for ``data_types.grad_accum_dtype``: the model's format.
    """
    compute = spec.precision.compute
    if compute == "fp32":
        return refined(FP32, spec.precision)
    held = "bf16" if compute == "fp8" else compute
    meaning = Dtypes(
        parameters=held,
        compute=compute,
        gradients=held,
        accumulate=held,
        master="fp32",
        optimizer_states="fp32",
        reduce=held,
    )
    return refined(meaning, spec.precision)
