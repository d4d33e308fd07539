"""The pile of an allocation, as far as its operation tells, and of the tensors that a model in training keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from launcher.estimate.memory.terms import Pile

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


def pile_of_operation(operation: str) -> Pile | None:
    """The pile of all that a collective, its packing or the loss reads and writes; None for any other operation."""
    if operation.startswith("aten._log_softmax"):  # The loss alone takes a logarithm.
        return "logits"
    if not operation.startswith(("c10d.", "_c10d_functional.", "fsdp.")):
        return None
    return next((pile for name, pile in _COLLECTIVES.items() if name in operation), None)


def pile_of_tensor(tensor: torch.Tensor, operation: str, vocabulary: frozenset[int]) -> Pile:
    """The pile of a new tensor, of a collective or of logits; temporary where it is not known yet."""
    known = pile_of_operation(operation)
    if known is not None:
        return known
    return "logits" if has_logits(tensor, vocabulary) else "temporary"


def has_logits(tensor: torch.Tensor, vocabulary: frozenset[int]) -> bool:
    """True if the last dimension is one that only logits have."""
    return tensor.dim() >= 2 and tensor.shape[-1] in vocabulary and tensor.is_floating_point()


def with_recomputation(piles: Mapping[str, int], usual: int) -> dict[str, int]:
    """Piles of a backward pass that computes blocks again: temporary bytes beyond the ``usual`` are activations."""
    again = max(0, piles.get("temporary", 0) - usual)
    moved = {"activations": piles.get("activations", 0) + again, "temporary": piles.get("temporary", 0) - again}
    return {pile: size for pile, size in {**piles, **moved}.items() if size}


type Kept = tuple[Pile, list[torch.Tensor]]
"""Tensors that an engine keeps, and the pile that they belong to; a later pile counts where a tensor is in two."""


def model_piles(modules: Iterable[nn.Module]) -> Iterator[Kept]:
    """Parameters with buffers, and gradients; of parameters cut by ZeRO 3 the rank's part and the gathered values."""
    made = list(modules)
    parameters = [parameter for module in made for parameter in module.parameters()]
    cut = [parameter for parameter in parameters if hasattr(parameter, "ds_tensor")]
    whole = [parameter for parameter in parameters if not hasattr(parameter, "ds_tensor")]
    yield "gather_buffers", [parameter.data for parameter in cut]
    every = (part for module in made for part in module.modules())  # Megatron's DDP has a list in place of buffers().
    buffers = [buffer for part in every for buffer in part._buffers.values() if buffer is not None]
    yield "parameters", buffers + whole + [parameter.ds_tensor for parameter in cut]
    yield "gradients", [parameter.grad for parameter in parameters if parameter.grad is not None]


def flat(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in lists, tuples and the values of dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from flat(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from flat(part)


def storages(tensors: Iterable[object]) -> Iterator[torch.UntypedStorage]:
    """The memory of tensors; one that several share comes several times."""
    for tensor in tensors:
        for held in plain(tensor):
            yield held.untyped_storage()


def plain(tensor: object) -> Iterator[torch.Tensor]:
    """The tensors with memory of their own that a tensor consists of; none for anything else."""
    if isinstance(tensor, DTensor):
        yield from plain(tensor._local_tensor)
    elif isinstance(tensor, torch.Tensor) and hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            yield from plain(getattr(tensor, name))
    elif isinstance(tensor, torch.Tensor):
        yield tensor


def divided(allocated: int, known: dict[str, int]) -> dict[str, int]:
    """Known piles of an allocated sum, at most as much as it, and the rest as temporary."""
    found, left = {}, allocated
    for pile in sorted(known, key=lambda pile: pile in ("logits", "activations")):
        found[pile] = min(known[pile], left)
        left -= found[pile]
    return {pile: size for pile, size in {**found, "temporary": left}.items() if size}


def kept_bytes(kept: Iterable[tuple[Pile, Iterable[torch.UntypedStorage]]], device: torch.device) -> dict[str, int]:
    """Bytes on a device by pile; a storage that several tensors share counts once, for the last."""
    piles: dict[int, tuple[str, int]] = {}
    for pile, held in kept:
        for storage in held:
            if storage.device.type == device.type:
                piles[storage._cdata] = (pile, storage.nbytes())
    found: dict[str, int] = {}
    for name, size in piles.values():
        found[name] = found.get(name, 0) + size
    return found
