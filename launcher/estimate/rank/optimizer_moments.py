"""The values that an optimizer keeps of each parameter: one table for the device, the host and checkpoints."""

from __future__ import annotations

MOMENTS_KEPT = {"adamw": (2, 2), "sgd": (1, 1), "lion": (1, 1), "muon": (1, 2)}
"""Of a parameter inside the blocks and of one outside, in the format of ``precision.optimizer_states``.

Muon steps the matrices of the blocks; embedding, output and norms are AdamW's (Keller Jordan's Muon). Norms inside the
blocks are counted with the matrices.
"""

_EIGHT_BIT = ("adamw_8bit", "paged_adamw_8bit")
_BYTES_8BIT = 2
"""Two moments of a byte each, whatever the format of other states (bitsandbytes ``functional.py``)."""


def moment_bytes(optimizer: str, parameters: int, outside_blocks: int, size: int) -> int:
    """Bytes of the moments: ``size`` a value. Factored states are none.

    Args:
        optimizer: Its name.
        parameters: All parameters that it steps.
        outside_blocks: Those of them outside the blocks.
        size: Bytes of a value, but for eight-bit optimizers.
    """
    if optimizer in _EIGHT_BIT:
        return _BYTES_8BIT * parameters
    inside, outside = MOMENTS_KEPT.get(optimizer, (0, 0))
    return size * (inside * (parameters - outside_blocks) + outside * outside_blocks)
