"""DeepSpeed's meaning of ``precision=``."""

from __future__ import annotations

from launcher.estimate.rank.formats import Dtypes, beside_master
from launcher.spec import Dtype, RunSpec


def dtypes(spec: RunSpec) -> Dtypes:
    """Parameters, gradients and their reduction in the word's format, fp32 master and moments (docs/precision.md).

    ``accumulate`` is DeepSpeed's own default for ``data_types.grad_accum_dtype``: the model's format.
    """
    compute = spec.precision.compute
    held: Dtype = "bf16" if compute == "fp8" else compute
    return beside_master(spec.precision, held, gradients=held)
