"""Optimizers of torch, torchao and bitsandbytes, the learning rate of a step, and clipping."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from launcher.estimate.rank.formats import FEW_BITS
from launcher.spec import OptimizerSpec, RunSpec
from launcher.worker.model import adapters, network


def learning_rate(optimizer: OptimizerSpec, step: int, steps: int) -> float:
    """The learning rate of one step, counted from 1; without ``decay_steps`` it decays over the run's ``steps``.

    It rises from ``warmup_lr`` to ``lr``, then follows the schedule to ``min_lr``, first reached in the step after the
    last of ``decay_steps`` (cosine: arXiv:1608.03983, equation 5, one period; WSD: arXiv:2404.06395, equation 1;
    inverse square root: as Megatron-LM's ``OptimizerParamScheduler``, from the rate at the end of warm-up).
    """
    warmup, end = optimizer.warm_up(steps), optimizer.schedule_steps(steps)
    if step <= warmup:
        return optimizer.warmup_lr + (optimizer.lr - optimizer.warmup_lr) * _warmup_ramp(optimizer.warmup, step, warmup)
    if optimizer.schedule == "constant":
        return optimizer.lr
    if step - 1 > end:
        return optimizer.min_lr
    if optimizer.schedule == "inverse_sqrt":
        return max(optimizer.min_lr, optimizer.lr * math.sqrt(max(1, warmup) / max(1, step - 1)))
    wsd = optimizer.schedule == "wsd"
    shape = optimizer.wsd_decay if wsd else optimizer.schedule
    last = min(end - warmup, optimizer.wsd_steps(steps)) if wsd else end - warmup
    done = max(0.0, (step - 1 - (end - last)) / last)
    return optimizer.min_lr + (optimizer.lr - optimizer.min_lr) * _DECAYS[shape](done)


_DECAYS: Mapping[str, Callable[[float], float]] = {
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "exponential": lambda done: 2 * 0.5**done - 1,
    "minus_sqrt": lambda done: 1 - math.sqrt(done),
}
"""The remaining fraction of the decay for a fraction done: 1 at the start, 0 at the end (Megatron-LM's shapes)."""


def _warmup_ramp(kind: str, step: int, warmup: int) -> float:
    """The fraction of warm-up reached at a step: linear, or logarithmic as in DeepSpeed's ``WarmupLR``.

    DeepSpeed (``runtime/lr_schedules.py``) counts iterations from 0 and warms up over at least 2; here the first step
    has the rate of DeepSpeed's iteration 1, since its iterations -1 and 0 make no progress.
    """
    if kind == "linear":
        return step / warmup
    return min(1.0, math.log(step + 1) / math.log(max(2, warmup)))


def set_rate(stepped: Iterable[Optimizer], spec: RunSpec, step: int) -> float:
    """Set the learning rate of a step and return it; a parameter group may have a fixed ``ratio`` to it."""
    rate = learning_rate(spec.optimizer, step, spec.steps)
    for group in (each for optimizer in stepped for each in optimizer.param_groups):
        own = rate * group.get("ratio", 1.0)
        if isinstance(group["lr"], torch.Tensor):  # torchao's compiled step reads a tensor.
            group["lr"].fill_(own)
        else:
            group["lr"] = own
    return rate


type Parameters = Sequence[torch.Tensor]
type Groups = list[dict[str, Any]]


def parameter_groups(model: nn.Module, spec: RunSpec) -> Groups:
    """Groups of the trainable parameters for one optimizer: those updated by its own rule, then the rest.

    Vectors (biases and norm scales) have no weight decay.
    """
    own, rest = _split_by_rule(spec, model, [model])
    bits = {"optim_bits": 8} if spec.optimizer.name in FEW_BITS else {}
    groups = [*_groups(own, spec.optimizer.weight_decay, **bits), *_groups(rest, spec.optimizer.weight_decay)]
    return adapters.rated(groups, model.named_parameters(), spec.adapter.lora_plus)


def _groups(parameters: Parameters, weight_decay: float, **settings: object) -> Groups:
    groups = (
        ([parameter for parameter in parameters if parameter.dim() >= 2], weight_decay),
        ([parameter for parameter in parameters if parameter.dim() < 2], 0.0),
    )
    return [{"params": members, "weight_decay": decay, **settings} for members, decay in groups if members]


def optimizers(spec: RunSpec, model: nn.Module, networks: Sequence[nn.Module]) -> list[Optimizer]:
    """The optimizers of a model, one for each trainable parameter; on a GPU fused unless the run says otherwise.

    Muon updates the matrices of the blocks, and the 8-bit optimizers all matrices except embeddings, whose rows without
    a token have no gradient (Hugging Face's Trainer keeps those in 32 bits, too); AdamW updates the rest.
    """
    own, rest = _split_by_rule(spec, model, networks)
    named = list(model.named_parameters())

    def rated(parameters: Parameters, **settings: object) -> Groups:
        groups = _groups(parameters, spec.optimizer.weight_decay, **settings)
        return adapters.rated(groups, named, spec.adapter.lora_plus)

    of_rest = {} if spec.optimizer.adamw_lr is None else {"ratio": spec.optimizer.adamw_lr / spec.optimizer.lr}
    found = [_library(spec, rated(own))] if own else []
    return [*found, _torch(spec, rated(rest, **of_rest))] if rest else found


def _split_by_rule(spec: RunSpec, model: nn.Module, networks: Sequence[nn.Module]) -> tuple[Parameters, Parameters]:
    """The trainable parameters that the optimizer updates by its own rule, and the rest."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ruled = _with_own_rule(spec, model, networks)
    return [each for each in trained if each in ruled], [each for each in trained if each not in ruled]


def _with_own_rule(spec: RunSpec, model: nn.Module, networks: Sequence[nn.Module]) -> set[torch.Tensor]:
    """The parameters that the optimizer updates by its own rule; none for torch's AdamW and SGD."""
    name = spec.optimizer.name
    if name in ("adamw", "sgd"):
        return set()
    every: set[torch.Tensor] = set(model.parameters())
    if name in ("adafactor", "lion"):
        return every
    matrices = {each for each in every if each.dim() >= 2}
    if name == "muon":
        return matrices & {each for part in networks for each in network.blocks(part).parameters()}
    return matrices - {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}


def _library(spec: RunSpec, groups: Groups) -> Optimizer:
    wanted = spec.optimizer
    if wanted.name == "muon":
        # AdamW's learning rate fits both: updates have the size of AdamW's (arXiv:2502.16982, section 2.2).
        return torch.optim.Muon(groups, wanted.lr, momentum=wanted.beta1, adjust_lr_fn="match_rms_adamw")
    from launcher.worker.model import shards  # Late: torchao and bitsandbytes take seconds.

    return shards.optimizer(spec, groups)


def _torch(spec: RunSpec, groups: Groups) -> Optimizer:
    wanted = spec.optimizer
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
    """Clip all gradients to a norm; return the norm before, over all ``stages`` and without ``copies``."""
    found = [parameter for parameter in parameters if parameter.grad is not None]
    counted = [each.grad for each in found if each.grad is not None and each not in copies]
    norms = [torch.nn.utils.get_total_norm(some) for some in _by_mesh(counted)]
    parts = [each.full_tensor() if isinstance(each, DTensor) else each for each in norms]
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
    """Tensors grouped by mesh, at least one list: one operation cannot take DTensors of two meshes."""
    groups: dict[object, list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
    return list(groups.values()) or [[]]
