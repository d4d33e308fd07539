"""The network as DeepSpeed gets it: made without memory, then given memory parameter by parameter.

ZeRO 3 partitions each parameter as soon as it has memory, so that no rank ever holds the whole model; every stage
starts from the values that ``launcher.worker.model.initial`` gives the other engines.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.utils import groups
from torch import nn

from launcher.worker.deepspeed import stages, tensor
from launcher.worker.deepspeed.ulysses import Ulysses
from launcher.worker.engine import Context
from launcher.worker.model import LanguageModel, adapters, initial, network, optimizers, weights

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def build(
    context: Context, config: dict[str, Any], shared: Ulysses | None = None
) -> tuple[LanguageModel, list[dict[str, Any]]]:
    """The model with its values, and its parameters in groups for the optimizer.

    Args:
        context: The rank.
        config: The content of ``ds_config.json``.
        shared: The ranks that share sequences with this one.
    """
    spec = context.spec
    made = network.network(spec.model, _DTYPES[spec.precision.compute], attention=shared.attention if shared else None)
    if spec.parallel.pipeline > 1:
        stages.cut(made, context)
    adapters.inject(made, spec)
    cutter = tensor.cut(made, config["tensor_parallel"]) if spec.parallel.tensor > 1 else None
    stepped = optimizers.parameter_groups(made, spec.optimizer.weight_decay)
    partition = _partitioner(config) if spec.zero.stage == 3 else None
    real = _with_memory(made, context.device, partition)
    for group in stepped:
        group["params"] = [real[id(parameter)] for parameter in group["params"]]
    if spec.model.weights is None:
        initial.fill(made, spec.train.seed, access=opened)
    else:
        weights.load(made, Path(spec.model.weights), spec.train.seed, access=opened)
    model = LanguageModel(made, spec, share=shared.share if shared else None)
    if cutter is not None:
        tensor.finish(model, cutter)
    return model, stepped


@contextlib.contextmanager
def opened(parameter: torch.Tensor) -> Iterator[initial.Local | None]:
    """A rank's tensor parallel part of a parameter, to be filled; with ZeRO 3 the first data rank alone fills it.

    On leaving, its values are sent to all data ranks.
    """
    if not hasattr(parameter, "ds_id"):
        yield tensor.part(parameter, parameter)
        return
    with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
        first = deepspeed.comm.get_rank(vars(parameter)["ds_process_group"]) == 0
        yield tensor.part(parameter, parameter) if first else None


@contextlib.contextmanager
def gathered(parameter: torch.Tensor) -> Iterator[torch.Tensor]:
    """A parameter to be read in full, on all ranks."""
    with deepspeed.zero.GatheredParameters([parameter], enabled=hasattr(parameter, "ds_id")):
        yield tensor.whole(parameter, parameter)


def _with_memory(
    made: nn.Module, device: torch.device, partition: Callable[[nn.Parameter], None] | None
) -> dict[int, nn.Parameter]:
    """Put parameters and buffers on a device in place of those without memory; the new ones by the old ones' id."""
    real: dict[int, nn.Parameter] = {}
    for module in made.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in real:
                fresh = nn.Parameter(torch.empty_like(parameter, device=device), parameter.requires_grad)
                tensor.hand_on(parameter, fresh)
                real[id(parameter)] = fresh
                if partition is not None:
                    partition(fresh)
            module.register_parameter(name, real[id(parameter)])
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty_like(buffer, device=device))
    return real


def _partitioner(config: dict[str, Any]) -> Callable[[nn.Parameter], None]:
    """A function that partitions one parameter among the ranks, as ``zero.Init(module=...)`` does for a module's.

    One ``Init`` serves all of them, since with NVMe offload it owns the buffers that they are swapped through.
    """
    among = groups.get_data_parallel_group() if "tensor_parallel" in config else None
    made = deepspeed.zero.Init(config_dict_or_path=config, data_parallel_group=among)

    def partition(parameter: nn.Parameter) -> None:
        made._convert_to_zero_parameters([parameter])

    return partition
