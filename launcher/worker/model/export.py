"""Export to safetensors that ``transformers`` loads: tensors are gathered one at a time, each rank writes its share.

Tensors are assigned to ranks, the largest first and each to the rank with the least so far; all ranks gather all of
them in the same order. Each owner writes one file, and rank 0 the index and ``config.json``. A pipeline stage assigns
its tensors to its own ranks. An adapter is small: rank 0 writes all of it, in ``peft``'s format.
"""

import contextlib
import json
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from launcher.worker.engine import Context
from launcher.worker.model import adapters, weights

type Whole = Callable[[torch.Tensor], contextlib.AbstractContextManager[torch.Tensor]]
"""Gathers one parameter while the context is open; called by all ranks together."""


@contextlib.contextmanager
def _whole_tensor(parameter: torch.Tensor) -> Iterator[torch.Tensor]:
    yield parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach()


@torch.no_grad()
def write(
    parts: Sequence[Any],
    context: Context,
    directory: Path,
    whole: Whole = _whole_tensor,
    elements: Callable[[torch.Tensor], int] = torch.numel,
    *,
    stages: dist.ProcessGroup | None = None,
) -> None:
    """Write a model, or only its adapter, into an existing directory; called by all ranks together.

    No rank holds more than its share of the files and one whole tensor. ``whole`` gathers one of the engine's
    parameters, ``elements`` counts a whole one's elements; ``stages`` are the ranks with the other pipeline stages.
    """
    wanted = {name: value for made in parts for name, value in (*made.named_parameters(), *weights.persistent(made))}
    if context.spec.adapter.name != "none":
        wanted = {name: value for name, value in wanted.items() if value.requires_grad}
        first = context.rank // _together(context) * _together(context)
        tensors = gather(wanted, dict.fromkeys(wanted, first), context.rank, whole)
        everything = {name: value for some in _everywhere(tensors, stages) for name, value in some.items()}
        if context.rank == 0:
            adapters.export(everything, context.spec, directory)
        return
    sizes = {name: (elements(value), value.element_size()) for name, value in wanted.items()}
    everywhere = _everywhere(sizes, stages)
    total = sum(count * size for count, size in ChainMap(*map(dict, everywhere)).values())
    owners = _owners(everywhere, _together(context))
    finish(parts[0], gather(wanted, owners, context.rank, whole), owners, total, context.rank, directory)


def _together(context: Context) -> int:
    return context.world // context.spec.parallel.pipeline


def _everywhere[T](mine: T, stages: dist.ProcessGroup | None) -> list[T]:
    if stages is None:
        return [mine]
    found: list[Any] = [None] * dist.get_world_size(stages)
    dist.all_gather_object(found, mine, group=stages)
    return found


def _owners(everywhere: Sequence[Mapping[str, tuple[int, int]]], together: int) -> dict[str, int]:
    """The rank that writes each tensor: one that has it; of a tied table's two copies, the first is written."""
    owners: dict[str, int] = {}
    for stage, sizes in enumerate(everywhere):
        own = {name: count for name, (count, _) in sizes.items() if name not in owners}
        owners |= {name: stage * together + rank for name, rank in shares(own, min(together, len(own))).items()}
    return owners


def finish(
    made: Any, tensors: dict[str, torch.Tensor], owners: dict[str, int], total: int, rank: int, directory: Path
) -> None:
    """Write this rank's whole tensors and, on rank 0, the index and the configuration; ``total`` is in bytes."""
    writers = sorted(set(owners.values()))
    files = {
        writer: f"model-{number:05d}-of-{len(writers):05d}.safetensors"
        for number, writer in enumerate(writers, start=1)
    }
    if tensors:
        save_file(tensors, directory / files[rank], metadata={"format": "pt"})
    if rank == 0:
        index = {"metadata": {"total_size": total}, "weight_map": {name: files[owners[name]] for name in owners}}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
        made.config.architectures = [type(made).__name__.removeprefix("FSDP")]
        made.config.save_pretrained(directory)


def shares(sizes: dict[str, int], ranks: int) -> dict[str, int]:
    """The rank that writes each tensor, assigned largest first to the rank with the least so far."""
    load = [0] * ranks
    owners = {}
    for name in sorted(sizes, key=lambda item: (-sizes[item], item)):
        owners[name] = load.index(min(load))
        load[owners[name]] += sizes[name]
    return owners


def gather(
    parameters: dict[str, torch.Tensor], owners: dict[str, int], rank: int, whole: Whole
) -> dict[str, torch.Tensor]:
    """The whole tensors that this rank owns, on the CPU."""
    mine = {}
    for name, parameter in parameters.items():
        with whole(parameter) as tensor:
            if owners[name] == rank:
                mine[name] = tensor.detach().to("cpu", copy=True).contiguous()
    return mine
