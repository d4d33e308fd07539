"""The pile of an allocation, as far as its operation tells."""

from __future__ import annotations

import torch

from launcher.memory.terms import Pile

GATHERED: Pile = "gather_buffers"
"""Pile of storages resized from nothing: FSDP2's gathered parameters, whose storages it keeps."""

_COLLECTIVES: dict[str, Pile] = {
    "all_gather": "gather_buffers",
    "allgather": "gather_buffers",
    "broadcast": "gather_buffers",
    "reduce_scatter": "reduce_buffers",
    "chunk_cat": "reduce_buffers",
    "all_reduce": "reduce_buffers",
    "allreduce": "reduce_buffers",
}


def of_collective(operation: str) -> Pile | None:
    """The pile of the tensors that a collective or its packing reads and writes; None for any other operation."""
    if not operation.startswith(("c10d.", "_c10d_functional.", "fsdp.")):
        return None
    return next((pile for name, pile in _COLLECTIVES.items() if name in operation), None)


def of_tensor(tensor: torch.Tensor, operation: str, vocabulary: frozenset[int]) -> Pile:
    """The pile of a new tensor: those of collectives and logits can be told at once."""
    collective = of_collective(operation)
    if collective is not None:
        return collective
    if tensor.dim() >= 2 and tensor.shape[-1] in vocabulary and tensor.is_floating_point():
        return "logits"
    return "temporary"
