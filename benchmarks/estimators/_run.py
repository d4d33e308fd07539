"""Properties of a run that the estimators ask for."""

from __future__ import annotations

from launcher.base import registry
from launcher.estimate.rank.counts import padded, parameter_counts
from launcher.spec import RunSpec

SIXTEEN_BITS = ("bf16", "fp16")


def parameters(spec: RunSpec) -> int:
    """Parameters of the whole model, shared ones once."""
    total, _ = parameter_counts(spec, registry.load("families", spec.model.family))
    return total


def largest_module(spec: RunSpec) -> int:
    """Parameters of the module that holds most of its own: a linear or an embedding, all experts of a layer in one."""
    model, family = spec.model, registry.load("families", spec.model.family)
    groups = [family.embedding(model, model.vocab_size), family.head(model, model.vocab_size)]
    groups += [family.block(model, layer) for layer in range(model.num_hidden_layers)]
    sizes: dict[tuple[int, str], int] = {}
    for place, group in enumerate(groups):
        for weight in group:
            module = (place, weight.name.rpartition(".")[0])
            sizes[module] = sizes.get(module, 0) + weight.elements
    return max(sizes.values())


def vocabulary(spec: RunSpec) -> int:
    """The vocabulary as Megatron-LM pads it by default: to a multiple of 128 on every tensor parallel rank."""
    return padded(spec.model.vocab_size, 128 * spec.parallel.tensor)


def trains_everything(spec: RunSpec) -> bool:
    """True if all weights are trained by Adam with nothing offloaded: what every one of the estimators assumes."""
    offloaded = spec.zero.offload_optimizer != "none" or spec.zero.offload_parameters != "none"
    return spec.adapter.name == "none" and spec.optimizer.name == "adamw" and not offloaded


def zero_stage(spec: RunSpec) -> int:
    """The stage of ZeRO that the sharding amounts to; FSDP's full shard is 3, DDP 0."""
    if spec.backend.name == "fsdp" and not spec.parallel.shard:
        return 0
    return spec.zero.stage
