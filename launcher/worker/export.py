"""Export to safetensors that ``transformers`` loads: tensors gathered one at a time, each rank writes its share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from launcher.worker import adapters
from launcher.worker.engine import Context


@torch.no_grad()
def write(made: Any, context: Context, directory: Path) -> None:
    """Write a network, or only its adapter, into an existing directory; called by all ranks together.

    No rank ever holds more than its share of the files and one whole tensor.
    """
    if context.spec.adapter.name != "none":
        wanted = {name: value for name, value in made.named_parameters() if ".lora_" in name}
        tensors = gather(wanted, owners=dict.fromkeys(wanted, 0), rank=context.rank)
        if context.rank == 0:
            adapters.export(tensors, context.spec, directory)
        return
    wanted = dict(made.named_parameters())
    count = min(context.world, len(wanted))
    owners = shares({name: value.numel() for name, value in wanted.items()}, count)
    tensors = gather(wanted, owners, context.rank)
    if tensors:
        save_file(tensors, directory / _file(context.rank, count), metadata={"format": "pt"})
    if context.rank == 0:
        total = sum(value.numel() * value.element_size() for value in wanted.values())
        index = {"metadata": {"total_size": total}, "weight_map": {name: _file(owners[name], count) for name in wanted}}
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


def gather(parameters: dict[str, torch.Tensor], owners: dict[str, int], rank: int) -> dict[str, torch.Tensor]:
    """The whole tensors that this rank owns, on the CPU."""
    mine = {}
    for name, parameter in parameters.items():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach()
        if owners[name] == rank:
            mine[name] = whole.to("cpu", copy=True).contiguous()
    return mine


def _file(rank: int, count: int) -> str:
    return f"model-{rank + 1:05d}-of-{count:05d}.safetensors"
