"""LoRA by ``peft``: low-rank matrices beside frozen linear layers (arXiv:2106.09685), which QLoRA quantises."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from launcher.estimate import families
from launcher.spec import RunSpec
from launcher.worker import TrainingError
from launcher.worker.model import initial

_NAME = "default"


def settings(spec: RunSpec) -> Any:
    """The ``peft`` configuration of the run's adapter."""
    import peft  # Seconds of imports that only a run with an adapter pays.

    adapter = spec.adapter
    return peft.LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=sorted(adapter.targets),
        task_type="CAUSAL_LM",
        base_model_name_or_path=spec.model.weights,
        fan_in_fan_out=families.of(spec.model).traits.transposed,
    )


def quantise(network: Any, spec: RunSpec, compute: torch.dtype) -> None:
    """Put QLoRA's linears into the blocks of a network on the meta device; before :func:`inject`."""
    if spec.adapter.name == "qlora":
        _quantised().quantise(network, spec.adapter, compute)


def access(network: Any, spec: RunSpec, device: torch.device) -> initial.Access:
    """The context in which a parameter of a network is filled (``initial.fill``)."""
    return _quantised().access(network, device) if spec.adapter.name == "qlora" else contextlib.nullcontext


def _quantised() -> Any:
    """Import QLoRA's module late: bitsandbytes takes seconds."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # On the CPU it recommends kernels for inference.
    from launcher.worker.model import quantised

    return quantised


def inject(network: Any, spec: RunSpec) -> None:
    """Add the adapter to a network on the meta device and freeze all else; its targets must be modules of the model."""
    if spec.adapter.name == "none":
        return
    import peft

    known = {name.rsplit(".", 1)[-1] for name, module in network.named_modules() if hasattr(module, "weight")}
    unknown = [target for target in spec.adapter.targets if target not in known]
    if unknown:
        raise TrainingError(
            f"adapter.targets={unknown}: this model has no such modules; it has {', '.join(sorted(known))}"
        )
    unquantised = next(parameter.dtype for parameter in network.parameters() if parameter.is_floating_point())
    peft.inject_adapter_in_model(settings(spec), network, adapter_name=_NAME, low_cpu_mem_usage=True)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(".lora_" in name)
        if parameter.requires_grad:  # ``peft`` takes the format from the linear, where QLoRA has bytes.
            parameter.data = parameter.data.to(unquantised)


def export(tensors: dict[str, torch.Tensor], spec: RunSpec, directory: Path) -> None:
    """Write the adapter as ``peft`` loads it: its tensors by ``peft``'s own names, and its configuration."""
    renamed = {f"base_model.model.{name.replace(f'.{_NAME}', '')}": value for name, value in tensors.items()}
    save_file(renamed, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    settings(spec).save_pretrained(str(directory))
