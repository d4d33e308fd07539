"""First values that a class of ``transformers`` gives to parameters and buffers by code of its own.

Its ``_init_weights`` is called with a copy of each such module, whose small tensors are real and hold no number: what
is one afterwards was set. Matrices are left out; they are drawn as those of any other class.
"""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_MOST = 2**22  # Elements of a tensor that is made on every rank.
_MATRICES = frozenset(("weight", "gate_proj", "up_proj", "gate_up_proj", "down_proj"))
_PLAIN = (nn.Linear, nn.Embedding)


def own_values(made: Any) -> dict[str, torch.Tensor]:
    """Values by the name of the parameter or buffer, the same on every rank."""
    found: dict[str, torch.Tensor] = {}
    for path, module in made.named_modules():
        if _is_odd(module):
            found |= {f"{path}.{name}": value for name, value in _set(made, path, module)}
    return found


def _is_odd(module: nn.Module) -> bool:
    """True if a module itself has small parameters or buffers that are not a linear's or a table's."""
    if isinstance(module, _PLAIN):
        return False
    small = any(len(_shape(each)) < 2 or isinstance(module, nn.Conv1d) for each in module.parameters(recurse=False))
    buffers = any(True for _ in module.buffers(recurse=False)) and any(True for _ in module.parameters())
    return small or buffers


def _set(made: Any, path: str, module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    twin = _twin(module)
    with torch.random.fork_rng(devices=()), torch.no_grad():
        torch.manual_seed(zlib.crc32(path.encode()))
        if isinstance(twin, nn.Conv1d):
            twin.reset_parameters()
        made._init_weights(twin)
    for name, value in (*twin.named_parameters(), *twin.named_buffers()):
        matrix = value.dim() > 1 and name.rpartition(".")[2] in _MATRICES and not isinstance(twin, nn.Conv1d)
        if value.device.type == "meta" or matrix or (value.is_floating_point() and bool(value.isnan().any())):
            continue
        yield name, value.detach()


def _twin(module: nn.Module, depth: int = 1) -> nn.Module:
    """A copy with tensors of its own: real ones without a number where they are small, else without memory.

    So have the children of the module, and what is further below has none.
    """
    twin = copy.copy(module)
    twin._parameters = {
        name: None if each is None else nn.Parameter(_empty(each, depth), requires_grad=False)
        for name, each in module._parameters.items()
    }
    twin._buffers = {name: None if each is None else _empty(each, depth) for name, each in module._buffers.items()}
    twin._modules = {name: None if each is None else _twin(each, depth - 1) for name, each in module._modules.items()}
    return twin


def _empty(like: torch.Tensor, depth: int) -> torch.Tensor:
    shape = _shape(like)
    if depth < 0 or math.prod(shape) > _MOST:
        return torch.empty(shape, dtype=torch.float32, device="meta")
    if like.is_floating_point():
        return torch.full(shape, math.nan, dtype=torch.float32, device="cpu")
    return torch.zeros(shape, dtype=like.dtype, device="cpu")


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """The whole shape; DeepSpeed's ZeRO 3 leaves nothing else of a parameter."""
    return tuple(getattr(tensor, "ds_shape", tensor.shape))
