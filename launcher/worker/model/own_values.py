"""First values that a class of ``transformers`` gives to parameters and buffers by code of its own.

Its ``_init_weights`` is called with a copy of each such module, whose small tensors are real and hold no number: what
is one afterwards was set. Matrices are drawn as those of any other class, except those that the module around them
draws.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import nn

_MOST = 2**22  # Elements of a tensor that is made on every rank.
_MATRICES = frozenset(("weight", "gate_proj", "up_proj", "gate_up_proj", "down_proj"))
_PLAIN = (nn.Linear, nn.Embedding)


def own_values(made: Any) -> dict[str, torch.Tensor]:
    """Values by the name of the parameter or buffer, the same on every rank."""
    found: dict[str, torch.Tensor] = {}
    for path, module in reversed([*made.named_modules()]):  # What a module sets of those in it stands.
        if _is_odd(module):
            found |= {f"{path}.{name}": value for name, value in _set(made, path, module)}
    return found


def own_draws(made: Any) -> dict[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]]:
    """How linears begin whose weight the module around them draws, by the name of the parameter."""
    found: dict[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {}
    by_class: dict[type, list[str]] = {}
    for path, module in made.named_modules():
        if any(isinstance(getattr(each, "base_layer", each), nn.Linear) for each in module.children()):
            if type(module) not in by_class:
                by_class[type(module)] = _drawn(made, module)
            start = f"{path}." if path else ""
            found |= {start + name: _draw(made, module, name) for name in by_class[type(module)]}
    return found


@torch.no_grad()
def _drawn(made: Any, module: nn.Module) -> list[str]:
    """The weights of linears in a module that ``_init_weights`` writes to when it is called with the module."""
    twin = _twin(module, depth=-1)
    linears = [path for path, each in twin.named_modules() if path and isinstance(each, nn.Linear)]
    before = {path: twin.get_submodule(path).weight._version for path in linears}
    with torch.random.fork_rng(devices=()):
        made._init_weights(twin)
    return [f"{path}.weight" for path in linears if twin.get_submodule(path).weight._version != before[path]]


def _draw(made: Any, module: nn.Module, name: str) -> Callable[[torch.Tensor, torch.Generator], torch.Tensor]:
    """Draws a block of rows by a copy of the module that has no other tensors."""

    def draw(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        twin = _twin(module, depth=-1)
        owner, _, last = name.rpartition(".")
        twin.get_submodule(owner)._parameters[last] = nn.Parameter(values, requires_grad=False)
        device = values.device
        with torch.random.fork_rng(devices=(device,) if device.type == "cuda" else ()), torch.no_grad():
            torch.manual_seed(generator.initial_seed())
            made._init_weights(twin)
        return values

    return draw


@torch.no_grad()
def outer_buffers(made: Any, names: Collection[str]) -> dict[str, torch.Tensor]:
    """Values of the named buffers that ``_init_weights`` sets when it is called with a module around theirs."""
    around = {name.rsplit(".", cut)[0] for name in names for cut in range(2, name.count(".") + 1)}
    found: dict[str, torch.Tensor] = {}
    for path in sorted(around, key=lambda each: -each.count(".")):
        twin = _twin(made.get_submodule(path), depth=-1)
        inside = {name: name.removeprefix(f"{path}.") for name in names if name.startswith(f"{path}.")}
        for name, below in inside.items():
            owner, _, last = below.rpartition(".")
            twin.get_submodule(owner)._buffers[last] = _empty(made.get_buffer(name), depth=0)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(zlib.crc32(path.encode()))
            made._init_weights(twin)
        for name, below in inside.items():
            value = twin.get_buffer(below)
            if value.device.type != "meta" and not bool(value.isnan().any()):
                found[name] = value
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
        owner, _, last = name.rpartition(".")
        matrix = value.dim() > 1 and last in _MATRICES and not isinstance(twin.get_submodule(owner), nn.Conv1d)
        if value.device.type == "meta" or matrix or (value.is_floating_point() and bool(value.isnan().any())):
            continue
        yield name, value.detach()


def _twin(module: nn.Module, depth: int = 1) -> nn.Module:
    """A copy with tensors of its own: real ones without a number where they are small, else without memory."""
    twin: nn.Module = object.__new__(type(module))  # Calling __new__ of a class that FSDP made would build another.
    twin.__dict__ |= module.__dict__
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
