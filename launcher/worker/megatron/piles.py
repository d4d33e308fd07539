"""Tensors that Megatron keeps, by pile; the names are its own.

``core/distributed/param_and_grad_buffer.py``, ``core/optimizer/optimizer.py`` and ``distrib_optimizer.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import nn

from launcher.worker.piles import Kept, flat, of_model

_MASTERS = ("shard_fp32_from_float16_groups", "fp32_from_float16_groups")
_BUFFERS = ("buffers", "expert_parallel_buffers")


def kept(chunks: Iterable[Any], optimizer: Any) -> Iterator[Kept]:
    """Of a rank's model chunks in Megatron's DDP, and its optimizer."""
    made = list(chunks)
    yield from of_model(made)
    for buffer in (each for chunk in made for name in _BUFFERS for each in _listed(chunk, name)):
        yield "parameters", list(flat([buffer.param_data]))
        yield "gradients", list(flat([buffer.grad_data]))
    for one in getattr(optimizer, "chained_optimizers", None) or [optimizer]:
        masters = [tensor for name in _MASTERS for tensor in flat(getattr(one, name, ()))]
        yield "master_weights", masters
        yield "gradients", [tensor.grad for tensor in masters if tensor.grad is not None]
        yield "optimizer_states", list(flat(getattr(one.optimizer, "state", {})))


def _listed(chunk: Any, name: str) -> list[Any]:
    """The buffers of Megatron's DDP; ``buffers`` of a bare module is a function."""
    found = getattr(chunk, name, [])
    return found if isinstance(found, list) else []


def numbered(chunk: nn.Module) -> dict[int, nn.Module]:
    """The transformer blocks of a model chunk by their numbers in the whole model, from 0; Megatron's begin with 1."""
    return {int(module.layer_number) - 1: module for module in chunk.modules() if isinstance(module, TransformerLayer)}
