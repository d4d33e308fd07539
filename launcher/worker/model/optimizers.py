"""Optimizers of torch, the learning rate of a step, and clipping."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from launcher.spec import OptimizerSpec, RunSpec
from launcher.worker.model import adapters


def learning_rate(optimizer: OptimizerSpec, step: int, steps: int) -> float:
    """The rate of one step, counted from 1; without ``decay_steps`` it decays over the ``steps`` of the run.

    It rises from ``warmup_lr`` to ``lr`` over ``warmup_steps``, then follows the schedule to ``min_lr``, which the step
    after the last of ``decay_steps`` and all further ones have: with ``min_lr`` 0 no step before is idle (cosine:
    arXiv:1608.03983, equation 5, one period).
    """
    if step <= optimizer.warmup_steps:
        return optimizer.warmup_lr + (optimizer.lr - optimizer.warmup_lr) * _warmed_up(optimizer, step)
    if optimizer.schedule == "constant":
        return optimizer.lr
    decaying = max(1, (optimizer.decay_steps or steps) - optimizer.warmup_steps)
    done = min(1.0, (step - 1 - optimizer.warmup_steps) / decaying)
    left = 1 - done if optimizer.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return optimizer.min_lr + (optimizer.lr - optimizer.min_lr) * left


def _warmed_up(optimizer: OptimizerSpec, step: int) -> float:
    """The share of the way up that a step has: its number's, or its logarithm's as in DeepSpeed's ``WarmupLR``.

    DeepSpeed (``runtime/lr_schedules.py``) counts iterations from 0 and warms up over at least 2; here the first step
    has the rate of its iteration 1, since those of -1 and 0 are idle.
    """
    if optimizer.warmup == "linear":
        return step / optimizer.warmup_steps
    return min(1.0, math.log(step + 1) / math.log(max(2, optimizer.warmup_steps)))


def set_rate(optimizer: torch.optim.Optimizer, spec: RunSpec, step: int) -> float:
    """Set the learning rate of a step, and return it."""
    rate = learning_rate(spec.optimizer, step, spec.steps)
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("ratio", 1.0)
    return rate


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """The trainable parameters; biases and the scales of norms, vectors both, do not decay."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = (
        ([parameter for parameter in trainable if parameter.dim() >= 2], weight_decay),
        ([parameter for parameter in trainable if parameter.dim() < 2], 0.0),
    )
    return [{"params": members, "weight_decay": decay} for members, decay in groups if members]


def optimizer(spec: RunSpec, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer over a model's trainable parameters; on a GPU fused unless another is asked for."""
    wanted = spec.optimizer
    groups = parameter_groups(model, wanted.weight_decay)
    groups = adapters.rated(groups, model.named_parameters(), spec.adapter.lora_plus)
    on_gpu = all(parameter.device.type == "cuda" for group in groups for parameter in group["params"])
    fused = True if wanted.fused is None and wanted.foreach is None and on_gpu else wanted.fused
    if wanted.name == "sgd":
        return torch.optim.SGD(groups, lr=wanted.lr, momentum=wanted.beta1, fused=fused, foreach=wanted.foreach)
    betas = (wanted.beta1, wanted.beta2)
    return torch.optim.AdamW(groups, wanted.lr, betas, wanted.epsilon, fused=fused, foreach=wanted.foreach)


def clip(
    parameters: Iterable[torch.Tensor],
    largest: float,
    *,
    stages: dist.ProcessGroup | None = None,
    copies: Collection[torch.Tensor] = (),
) -> torch.Tensor:
    """Scale all gradients to a norm of at most ``largest`` (0: leave them) and return the norm before.

    The ranks ``stages`` hold the model's other parts; the norm of ``copies`` counts on another stage.
    """
    found = [parameter for parameter in parameters if parameter.grad is not None]
    counted = [each.grad for each in found if each.grad is not None and each not in copies]
    parts = [_whole_norm(some) for some in _by_mesh(counted)]
    norm = parts[0] if len(parts) == 1 else torch.nn.utils.get_total_norm(parts)
    if stages is not None:
        squared = norm.square()
        dist.all_reduce(squared, group=stages)
        norm = squared.sqrt()
    if largest > 0:
        for some in _by_mesh(found):
            torch.nn.utils.clip_grads_with_norm_(some, largest, norm)
    return norm


def _by_mesh(tensors: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Tensors of the same ranks together, one list at least: DTensors of two meshes take part in no operation."""
    groups: dict[object, list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
    return list(groups.values()) or [[]]


def _whole_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    norm = torch.nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
