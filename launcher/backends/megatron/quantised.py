"""Memory that Transformer Engine keeps in 8 and 4 bits: copies of weights, parameters, and the saved inputs of linears.

Files named below are in ``transformer_engine/pytorch`` 2.11. A linear multiplies by a quantised copy of its weight,
which it makes for the first micro-batch of a step and keeps (``get_weight_workspace`` of ``module/base.py``; Megatron-
core says which micro-batch is the first, ``extensions/transformer_engine.py``): by rows for the forward pass and by
columns for the gradient of its input. Where a card multiplies fp8 in any layout (``is_non_tn_fp8_gemm_supported``)
the rows serve both, if the whole tensor has one scale.
"""

from collections.abc import Iterator
from fractions import Fraction

from launcher.backends.megatron.implementation import fsdp, recipe
from launcher.estimate.memory.moments import TRAINING
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.engine import Quantised
from launcher.estimate.rank.model import RankModel
from launcher.spec import RunSpec

_ONE_LAYOUT = {
    "delayed": Fraction(1),
    "tensorwise": Fraction(1),
    "blockwise": 1 + Fraction(4, 128),
    "mxfp8": 1 + Fraction(1, 32),
    "nvfp4": Fraction(1, 2) + Fraction(1, 16),
}
"""Bytes of an element in one layout, including its scales: an fp32 scale for 128 values (``tensor/
float8_blockwise_tensor.py``), a byte for 32 (``tensor/mxfp8_tensor.py``) or for 16 (``tensor/nvfp4_tensor.py``)."""

_WHOLE_TENSORS = ("delayed", "tensorwise")  # Recipes with one scale for a tensor.
_ANY_LAYOUT = ((10.0, 12.0), (13.0, float("inf")))
"""Ranges of compute capability, upper end excluded, of cards that multiply fp8 in any layout."""


def quantised(spec: RunSpec) -> Quantised | None:
    """Bytes of quantised inputs and weights; None if products use 16 bits or more."""
    found = recipe(spec)
    if found is None:
        return None
    one, capability = _ONE_LAYOUT[found], spec.hardware.effective_capability
    rows_serve = found in _WHOLE_TENSORS and any(low <= capability < high for low, high in _ANY_LAYOUT)
    return Quantised(
        columns=one,
        both=one if rows_serve else 2 * one,
        parameters=bool(spec.backend.argument(f"{spec.precision.compute}-param-gather")),
        shares=found != "delayed",
        ends=_ends(spec),
    )


def _ends(spec: RunSpec) -> tuple[int, int]:
    """Layers in bf16 at either end, by default one each (``get_fp8_context`` of Megatron-core's ``fp8_utils.py``)."""
    if not spec.backend.argument("first-last-layers-bf16"):
        return 0, 0
    counts = [spec.backend.argument(f"num-layers-at-{end}-in-bf16", default=1) for end in ("start", "end")]
    first, last = (count if isinstance(count, int) else 1 for count in counts)
    return first, last


def weights(rank: RankModel) -> Iterator[MemoryTerm]:
    """Quantised copies of the linears' weights, or the weights themselves: ``both linears`` bytes.

    Embedding and output projection are not quantised. Megatron-FSDP's own parameters are sharded, in rows only except
    with mxfp8 (``fp8_need_transpose_data`` of its ``mixed_precision.py``); its copies are of whole weights.
    """
    how = rank.engine.quantised
    if how is None:
        return
    what, source, linears = "copies of weights", "Transformer Engine module/base.py, get_weight_workspace", rank.linears
    both = how.both
    if how.parameters:
        what, source = "quantised parameters", "Megatron-core core/distributed/param_and_grad_buffer.py"
        if fsdp(rank.spec):
            linears, both = rank.sharded_linears, both if recipe(rank.spec) == "mxfp8" else how.columns
    yield term("parameters", TRAINING, what, "ceil(both * linears)", source, both=both, linears=linears)
