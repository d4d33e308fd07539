"""The optimizer that DeepSpeed runs: its own kernels, which it compiles at first use, or torch's."""

from __future__ import annotations

from typing import Any, Literal

from launcher.spec import RunSpec

SUPPORTED = ("adamw", "sgd")
"""Optimizers that this backend translates; the others have no tested counterpart in DeepSpeed."""


def is_torch(spec: RunSpec) -> bool:
    """True if ``torch.optim`` makes the step, in place of DeepSpeed's FusedAdam or (offloaded) DeepSpeedCPUAdam.

    On the CPU it does, since DeepSpeed's own kernels need a compiler and minutes there. ``optimizer.fused`` and
    ``optimizer.foreach`` are words of ``torch.optim``: to set one is to choose it. NVMe offload swaps the state of
    DeepSpeedCPUAdam on any device.
    """
    if spec.optimizer.name != "adamw":
        return True
    if spec.zero.offload_optimizer == "nvme":
        return False
    return spec.hardware.device == "cpu" or spec.optimizer.fused is not None or spec.optimizer.foreach is not None


def step(spec: RunSpec) -> Literal["fused", "foreach", "loop"]:
    """Kernel of the step: where neither word is set, torch takes lists on a GPU and a loop on the CPU.

    ``torch/optim/optimizer.py``, ``_default_to_fused_or_foreach``; DeepSpeed's own kernels make no temporaries.
    """
    optimizer = spec.optimizer
    if optimizer.fused or not is_torch(spec):
        return "fused"
    unset = optimizer.fused is None and optimizer.foreach is None
    return "foreach" if optimizer.foreach or (unset and spec.hardware.device == "cuda") else "loop"


def block(spec: RunSpec) -> dict[str, Any]:
    """The ``optimizer`` block of ds_config; the worker's own schedule then sets the learning rate of each step."""
    optimizer = spec.optimizer
    choice = {key: value for key in ("foreach", "fused") if (value := getattr(optimizer, key)) is not None}
    common = {"lr": optimizer.lr, "weight_decay": optimizer.weight_decay, **choice}
    if optimizer.name == "sgd":
        return {"type": "SGD", "params": {**common, "momentum": optimizer.beta1}}
    adam = {"betas": [optimizer.beta1, optimizer.beta2], "eps": optimizer.epsilon}
    own = {"torch_adam": True} if is_torch(spec) else {"adam_w_mode": True}
    return {"type": "AdamW", "params": {**common, **adam, **own}}
