"""Export to safetensors that ``transformers`` loads: tensors gathered one at a time, each rank writes its share."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from launcher.worker import adapters
from launcher.worker.engine import Context

type Whole = Callable[[torch.Tensor], contextlib.AbstractContextManager[torch.Tensor]]
"""Gathers one parameter for as long as it is read; called by all ranks together."""


@contextlib.contextmanager
def whole_tensor(parameter: torch.Tensor) -> Iterator[torch.Tensor]:
    """A parameter that torch itself may have sharded."""
    yield parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach()


@torch.no_grad()
def write(
    made: Any,
    context: Context,
    directory: Path,
    whole: Whole = whole_tensor,
    elements: Callable[[torch.Tensor], int] = torch.numel,
) -> None:
    """Write a network, or only its adapter, into an existing directory; called by all ranks together.

    No rank ever holds more than its share of the files and one whole tensor.

    Args:
        made: The network, its parameters possibly sharded.
        context: The rank.
        directory: Where the files go.
        whole: How the engine gathers a parameter.
        elements: Of the whole parameter.
    """
    if context.spec.adapter.name != "none":
        wanted = {name: value for name, value in made.named_parameters() if ".lora_" in name}
        tensors = gather(wanted, dict.fromkeys(wanted, 0), context.rank, whole)
        if context.rank == 0:
            adapters.export(tensors, context.spec, directory)
        return
    wanted = dict(made.named_parameters())
    count = min(context.world, len(wanted))
    sizes = {name: elements(value) for name, value in wanted.items()}
    owners = shares(sizes, count)
    total = sum(sizes[name] * value.element_size() for name, value in wanted.items())
    finish(made, gather(wanted, owners, context.rank, whole), owners, total, context.rank, directory)


def finish(
    made: Any, tensors: dict[str, torch.Tensor], owners: dict[str, int], total: int, rank: int, directory: Path
) -> None:
    """Write this rank's tensors and, on rank 0, the index and the configuration.

    Args:
        made: The network.
        tensors: Those that this rank owns, whole.
        owners: The rank that writes each tensor.
        total: Bytes of all tensors.
        rank: This rank.
        directory: Where the files go.
    """
    count = max(owners.values()) + 1
    if tensors:
        save_file(tensors, directory / _file(rank, count), metadata={"format": "pt"})
    if rank == 0:
        index = {"metadata": {"total_size": total}, "weight_map": {name: _file(owners[name], count) for name in owners}}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
        made.config.architectures = [type(made).__name__.removeprefix("FSDP")]
        made.config.save_pretrained(directory)


def shares(sizes: dict[str, int], ranks: int) -> dict[str, int]:
    """The rank that writes each tensor: the largest first, always to the rank with the least so far."""
    load = [0] * ranks
    owners = {}
    for name in sorted(sizes, key=lambda item: (-sizes[item], item)):
        owners[name] = load.index(min(load))
        load[owners[name]] += sizes[name]
    return owners


def gather(
    parameters: dict[str, torch.Tensor], owners: dict[str, int], rank: int, whole: Whole = whole_tensor
) -> dict[str, torch.Tensor]:
    """The whole tensors that this rank owns, on the CPU."""
    mine = {}
    for name, parameter in parameters.items():
        with whole(parameter) as tensor:
            if owners[name] == rank:
                mine[name] = tensor.detach().to("cpu", copy=True).contiguous()
    return mine


def _file(rank: int, count: int) -> str:
    return f"model-{rank + 1:05d}-of-{count:05d}.safetensors"
