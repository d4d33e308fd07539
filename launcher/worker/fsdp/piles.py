"""Tensors that a model under FSDP2 or DDP keeps, by pile.

Between two steps a module of FSDP2 has its sharded parameters, while it runs its gathered ones in their place: torch
``distributed/fsdp/_fully_shard/_fsdp_param.py`` keeps both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from launcher.worker.piles import Kept, flat, of_model


def kept(model: nn.Module, optimizer: Optimizer) -> Iterator[Kept]:
    """Parameters with buffers, gradients, what FSDP2 has gathered, and optimizer states."""
    yield from of_model([model])
    sharded = [each for module in model.modules() if isinstance(module, FSDPModule) for each in _parameters(module)]
    for each in sharded:
        gathered = getattr(each, "_unsharded_param", None)
        yield "gather_buffers", [*each.all_gather_outputs, *([] if gathered is None else [gathered])]
    parts = [each.sharded_param for each in sharded]
    yield "parameters", parts
    yield "gradients", [part.grad for part in parts if part.grad is not None]
    yield "optimizer_states", list(flat(optimizer.state))


def _parameters(module: FSDPModule) -> Iterator[Any]:
    """What FSDP2 notes of each parameter of a module; torch up to 2.9 has one group of them at most."""
    state: Any = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    for group in [state._fsdp_param_group] if groups is None else groups:
        if group is not None:
            yield from group.fsdp_params
