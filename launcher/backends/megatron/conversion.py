"""Limits of ``launcher.worker.megatron.weights`` between Megatron's parameters and Hugging Face safetensors."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.backends import _models
from launcher.backends.megatron.implementation import fsdp
from launcher.base.errors import ConfigError
from launcher.estimate import families
from launcher.spec import RunSpec


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """``model.weights`` and ``save.export``, where the worker has no way from one to the other."""
    if spec.model.weights is not None:
        yield from _neither(spec, "model.weights", spec.model.weights, "model.weights=null")
    if spec.save.export != "none":
        yield from _neither(spec, "save.export", spec.save.export, "save.export=none")
        if fsdp(spec) and spec.backend.path is None:
            rule = "the parameters that Megatron-FSDP has cut are not joined in this version"
            yield ConfigError("save.export", spec.save.export, rule, ["save.export=none", "zero.stage=1"])


def _neither(spec: RunSpec, path: str, value: str, without: str) -> Iterator[ConfigError]:
    if spec.backend.path is not None:
        rule = "a checkout's own program reads and writes Megatron's checkpoints alone"
        yield ConfigError(path, value, rule, [without, "backend.path=null"])
    elif not _models.computed(spec):
        rule = "no class of transformers computes this model, so it has no form there"
        yield ConfigError(path, value, rule, [without])
    elif _is_deepseeks(spec):
        rule = "latent attention, shared experts, first dense layers and biases of experts have no form there yet"
        yield ConfigError(path, value, rule, [without])


def _is_deepseeks(spec: RunSpec) -> bool:
    """True if the model has a part of DeepSeek's that ``launcher.worker.megatron.layout`` has no names for."""
    model = spec.model
    parts = model.kv_lora_rank or model.num_shared_experts or model.first_dense_layers
    return bool(parts) or families.of(model).traits.balances_experts
