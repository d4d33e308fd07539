"""The number formats that ``precision`` means for a backend, and the bytes that an optimizer keeps per parameter."""

from dataclasses import replace
from functools import lru_cache

from launcher.base.frozen import dataclass
from launcher.base.units import DTYPE_BYTES
from launcher.spec import Dtype, PrecisionSpec
from launcher.spec.values import Hashed


@dataclass(frozen=True, slots=True, kw_only=True)
class Dtypes(Hashed):
    """Number formats of the tensor classes of one run."""

    parameters: Dtype  # The parameters that the module holds between two steps.
    compute: Dtype  # The matrix products of forward and backward.
    gradients: Dtype  # Gradients as the backward pass produces them.
    accumulate: Dtype  # The buffer in which micro-batches accumulate gradients and which the optimizer reads.
    # A second, wider copy of the parameters for the optimizer; ``None`` where the parameters are that copy.
    master: Dtype | None
    optimizer_states: Dtype  # Adam's two moments.
    reduce: Dtype  # The collective that averages the gradients.
    autocast: bool = False  # True if ``torch.autocast`` casts each weight on use, instead of a cast of whole shards.

    def size(self, of: str) -> int:
        """Bytes of one element of the tensor class ``of``; 0 for a master copy that does not exist."""
        name = getattr(self, of)
        return 0 if name is None else DTYPE_BYTES[name]


FP32 = Dtypes(
    parameters="fp32",
    compute="fp32",
    gradients="fp32",
    accumulate="fp32",
    master=None,
    optimizer_states="fp32",
    reduce="fp32",
)


@lru_cache(maxsize=256)
def beside_master(precision: PrecisionSpec, held: Dtype, gradients: Dtype) -> Dtypes:
    """Parameters in ``held``, gradients in one format throughout, and an fp32 master copy and moments.

    In fp32 everything is fp32, and the parameters are the master weights themselves.
    """
    if precision.compute == "fp32":
        return refined(FP32, precision)
    meaning = Dtypes(
        parameters=held,
        compute=precision.compute,
        gradients=gradients,
        accumulate=gradients,
        master="fp32",
        optimizer_states="fp32",
        reduce=gradients,
    )
    return refined(meaning, precision)


def refined(meaning: Dtypes, precision: PrecisionSpec) -> Dtypes:
    """The backend's formats, replaced by those that the user set."""
    changes: dict[str, Dtype | None] = {
        field: value
        for field in ("parameters", "gradients", "accumulate", "optimizer_states", "reduce")
        if (value := getattr(precision, field)) is not None
    }
    if precision.master is not None:
        changes["master"] = None if precision.master == "none" else precision.master
    return replace(meaning, **changes) if changes else meaning  # type: ignore[arg-type]


MOMENTS_KEPT = {"adamw": 2, "sgd": 1, "lion": 1}  # Per parameter, in the format of ``precision.optimizer_states``.
_INSIDE = {"muon": 1, "adamw_8bit": 2, "paged_adamw_8bit": 2, "adamw_4bit": 1}
"""Moments, or bytes of low-bit ones, per parameter inside the blocks, which all count as matrices; parameters outside
have AdamW's two."""

FEW_BITS = ("adamw_8bit", "paged_adamw_8bit", "adamw_4bit")


def moment_bytes(optimizer: str, parameters: int, outside_blocks: int, size: int) -> int:
    """Bytes of the moments: ``size`` per value, inside the blocks 1 in 8 bits and 0.5 in 4; none if factored."""
    if optimizer in MOMENTS_KEPT:
        return size * MOMENTS_KEPT[optimizer] * parameters
    inside = _INSIDE.get(optimizer, 0) * (1 if optimizer in FEW_BITS else size)
    outside = 2 * size if optimizer in _INSIDE else 0
    return inside * (parameters - outside_blocks) + outside * outside_blocks
