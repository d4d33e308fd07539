"""LoRA by ``peft``: low-rank matrices beside frozen linear layers (arXiv:2106.09685), which QLoRA quantises."""

import contextlib
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.tensor import DTensor

from launcher.estimate import families
from launcher.spec import RunSpec
from launcher.worker import TrainingError, replaced
from launcher.worker.engine import Context
from launcher.worker.model import initial

_NAME = "default"


def settings(spec: RunSpec) -> Any:
    """The ``peft`` configuration of the run's adapter."""
    import peft  # Late: it takes seconds, and only runs with an adapter need it.

    adapter, task = spec.adapter, "SEQ_CLS" if spec.task.name == "reward" else "CAUSAL_LM"
    modules = {"target_modules": sorted(adapter.targets), "task_type": task}
    if adapter.rotates:
        return peft.OFTConfig(**modules, oft_block_size=adapter.block_size, base_model_name_or_path=spec.model.weights)
    return peft.LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        **modules,
        base_model_name_or_path=spec.model.weights,
        fan_in_fan_out=families.of(spec.model).traits.transposed,
        use_dora=adapter.dora,
        use_rslora=adapter.rslora,
        modules_to_save=list(adapter.modules_to_save) or None,
        target_parameters=list(adapter.parameters) or None,
    )


def start(spec: RunSpec) -> str:
    """``peft``'s name for PiSSA's initialization: by a number of iterations, or by an exact SVD."""
    iterations = spec.adapter.pissa
    return f"pissa_niter_{iterations}" if iterations else "pissa"


def keep_start(network: Any, context: Context) -> None:
    """Save PiSSA's initial matrices, which an export needs to express the result as LoRA on the original weights."""
    if context.spec.adapter.pissa is not None and context.rank == 0:
        found = network.peft_config[_NAME]
        with replaced(found, "init_lora_weights", True):
            network.save_pretrained(str(context.directory / PISSA))


PISSA = "pissa"
"""The folder in a run directory with PiSSA's initial matrices."""


def quantise(network: Any, spec: RunSpec, compute: torch.dtype) -> None:
    """Replace the linears of QLoRA's blocks by packed ones in a network on the meta device; before :func:`inject`."""
    if spec.adapter.bits:
        wide = not spec.parallel.shard
        _quantised().quantise(network, spec, compute, torch.float32 if wide else compute)


def access(
    network: Any, spec: RunSpec, device: torch.device, otherwise: initial.Access = contextlib.nullcontext
) -> initial.Access:
    """The context in which ``initial.fill`` fills a parameter: ``otherwise`` if it is not packed."""
    if not spec.adapter.bits:
        return otherwise
    found: initial.Access = _quantised().access(network, device, otherwise)
    return found


def release_inputs(network: nn.Module, spec: RunSpec) -> None:
    """Stop ``transformers``' 8-bit linears from keeping their inputs, which the worker's own do not keep either."""
    if spec.adapter.bits == 8:
        packed = _quantised()
        for module in network.modules():
            if isinstance(module, packed.Linear8bitLt):
                module.register_forward_hook(lambda _module, _inputs, product: packed.release_input(product))


def _quantised() -> Any:
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # On the CPU it logs advice about inference kernels.
    from launcher.worker.model import quantised

    return quantised


def inject(network: Any, spec: RunSpec) -> None:
    """Add the adapter to a network on the meta device, freeze the rest; TrainingError for a target it does not have."""
    if spec.adapter.name == "none":
        return
    import peft

    known = {name.rsplit(".", 1)[-1] for name, module in network.named_modules() if hasattr(module, "weight")}
    for key in ("targets", "modules_to_save"):
        unknown = [name for name in getattr(spec.adapter, key) if name not in known]
        if unknown:
            raise TrainingError(
                f"adapter.{key}={unknown}: this model has no such modules; it has {', '.join(sorted(known))}"
            )
    unquantised = next(parameter.dtype for parameter in network.parameters() if parameter.is_floating_point())
    found = settings(spec)
    if spec.adapter.parameters and spec.adapter.bits:
        _quantised().match_packed(found, network)
    peft.inject_adapter_in_model(found, network, adapter_name=_NAME, low_cpu_mem_usage=True)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(".lora_" in name or ".modules_to_save." in name)
        if parameter.requires_grad:  # ``peft`` copies the dtype of the linear, which is bytes in QLoRA.
            parameter.data = parameter.data.to(unquantised)


@torch.no_grad()
def set_magnitudes(network: Any) -> None:
    """Initialize DoRA's magnitude vectors to the norms of the weights' rows, with one whole weight at a time."""
    for module in network.modules():
        for vector in getattr(module, "lora_magnitude_vector", {}).values():
            weight = _whole(module.base_layer)
            norms = vector.get_weight_norm(weight, torch.zeros_like(weight[:1, :1]), 1.0)
            part = initial.local(vector.weight)
            part.tensor.copy_(norms[part.region])


def _whole(linear: Any) -> torch.Tensor:
    weight: torch.Tensor = linear.weight.full_tensor() if isinstance(linear.weight, DTensor) else linear.weight
    return linear.unpacked(weight) if hasattr(linear, "unpacked") else weight


def rated(
    groups: list[dict[str, Any]], named: Iterable[tuple[str, nn.Parameter]], ratio: float | None
) -> list[dict[str, Any]]:
    """Parameter groups split for LoRA+'s faster parameters, as ``peft.optimizers.create_loraplus_optimizer`` does."""
    if ratio is None:
        return groups
    faster = {id(each) for name, each in named if ".lora_B." in name or each.dim() == 1}
    parts = [
        {**group, "params": [each for each in group["params"] if (id(each) in faster) is fast], **extra}
        for group in groups
        for fast, extra in ((False, {}), (True, {"ratio": ratio}))
    ]
    return [group for group in parts if group["params"]]


def export(tensors: dict[str, torch.Tensor], spec: RunSpec, directory: Path) -> None:
    """Write the adapter for ``peft`` to load: its tensors under ``peft``'s names, and its configuration."""
    renamed = {f"base_model.model.{_saved_name(name)}": value for name, value in tensors.items()}
    save_file(renamed, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    settings(spec).save_pretrained(str(directory))


def _saved_name(name: str) -> str:
    name = name.replace(f".modules_to_save.{_NAME}", "").replace(f".{_NAME}", "")
    return name.removesuffix(".weight") if ".lora_magnitude_vector." in name else name
