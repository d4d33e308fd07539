"""Values of a network's buffers, all of which follow from its configuration: none is in a checkpoint."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn


def values(made: Any) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
    """Module, name and CPU tensor of each buffer."""
    for module in made.modules():
        for name, _ in module.named_buffers(recurse=False):
            if name in _BY_NAME:
                yield module, name, _BY_NAME[name](module, made.config)
        if any(name not in _BY_NAME for name, _ in module.named_buffers(recurse=False)):
            fresh = _again(module, made.config)
            for name, value in fresh.named_buffers(recurse=False):
                yield module, name, value


def _again(module: nn.Module, config: Any) -> nn.Module:
    """A module of the same class with its buffers filled in; some keep the configuration that they were made of."""
    if "config" in inspect.signature(type(module)).parameters:
        return type(module)(config=getattr(module, "config", config))
    return type(module)()


def _scale(module: Any, config: Any) -> torch.Tensor:
    """Of Gemma's embeddings."""
    return torch.tensor(module.scalar_embed_scale)


def _sines(module: Any, config: Any) -> torch.Tensor:
    """GPT-J's and CodeGen's rotary table, by the function beside their attention."""
    table: torch.Tensor = sys.modules[type(module).__module__].create_sinusoidal_positions(
        config.max_position_embeddings, config.rotary_dim or config.hidden_size
    )
    return table


def _earlier(module: Any, config: Any) -> torch.Tensor:
    """GPT-Neo's and GPTBigCode's mask of earlier tokens, of all or of those in a window."""
    longest = config.max_position_embeddings
    seen = torch.tril(torch.ones((longest, longest), dtype=torch.bool))
    if getattr(module, "attention_type", "") == "local":
        seen = torch.bitwise_xor(seen, torch.tril(seen, -config.window_size))
    return seen.view(module.bias.shape)


_BY_NAME: dict[str, Callable[[Any, Any], torch.Tensor]] = {
    "embed_scale": _scale,
    "embed_positions": _sines,
    "bias": _earlier,
}
"""Buffers of modules that have parameters as well, or whose class takes more than a configuration."""
