"""Limits of Megatron-core's recomputation and offload of activations.

Files named below without a folder are those of ``megatron/core``.
"""

from collections.abc import Iterator

from launcher.backends.megatron.implementation import implementation, recipe
from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit

_MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
OFFLOAD_MODULES = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act")
_OF_EXPERTS = ("expert_fc1", "moe_act")


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Modules and layers that are recomputed or moved to the host."""
    checkpointing = spec.checkpointing
    unknown = [name for name in checkpointing.modules if name not in _MODULES]
    if checkpointing.mode == "selective" and checkpointing.layers is not None:
        rule = "Megatron-LM recomputes modules of all layers, or all of some layers (--recompute-num-layers)"
        way_out = ["checkpointing.layers=null", "checkpointing=full checkpointing.method=block"]
        yield ConfigError("checkpointing.layers", checkpointing.layers, rule, way_out)
    if unknown:
        rule = f"Megatron-LM recomputes the modules {', '.join(_MODULES)}"
        theirs = {"attention": "core_attn", "norm": "layernorm", "experts": "moe"}
        near = (theirs.get(name, name) for name in checkpointing.modules)
        known = [name for name in dict.fromkeys(near) if name in _MODULES]
        way_out = [edit.override("checkpointing.modules", known or ["core_attn"])]
        yield ConfigError("checkpointing.modules", list(checkpointing.modules), rule, way_out)
    yield from _recomputed(spec)
    yield from _offloaded(spec)
    if "mla_up_proj" in checkpointing.modules and not spec.model.kv_lora_rank:
        rest = [name for name in checkpointing.modules if name != "mla_up_proj"]
        rule = "mla_up_proj belongs to multi-head latent attention, and model.kv_lora_rank is 0"
        way_out = [edit.override("checkpointing.modules", rest)]
        yield ConfigError("checkpointing.modules", list(checkpointing.modules), rule, way_out)


def _offloaded(spec: RunSpec) -> Iterator[ConfigError]:
    """Limits of both ways of moving activations to the host (``core/transformer/transformer_config.py``)."""
    how, path, modules = spec.checkpointing, "checkpointing.offload", "checkpointing.offload_modules"
    named = list(how.offload_modules)
    if not how.offload:
        return
    back = "checkpointing.offload=false"
    if spec.hardware.device == "cpu":
        rule = "Transformer Engine moves activations, which runs on GPUs alone"
        yield ConfigError(path, True, rule, [back, "hardware=h100_80g"])
    if unknown := [name for name in named if name not in OFFLOAD_MODULES]:
        rule = f"Megatron-LM moves the inputs of {', '.join(OFFLOAD_MODULES)}"
        known = [name for name in named if name not in unknown] or ["core_attn"]
        yield ConfigError(modules, named, rule, [edit.override(modules, known)])
    if "attn_proj" in named and "core_attn" not in named:
        rule = "the input of attn_proj is the output of core_attn, whose backward pass needs it"
        yield ConfigError(modules, named, rule, [edit.override(modules, [*named, "core_attn"])])
    if how.mode == "full" and named:
        rule = "a block that is recomputed whole keeps its input alone, which is no module's"
        yield ConfigError(modules, named, rule, ["checkpointing=selective", back])
    inside = [name for name in named if name in _OF_EXPERTS]
    if inside and not (spec.model.num_experts and implementation(spec).grouped):
        rule = f"{' and '.join(inside)} belong to grouped experts, which this run does not have"
        rest = [name for name in named if name not in inside]
        yield ConfigError(modules, named, rule, [edit.override(modules, rest or ["core_attn"])])
    elif inside and "moe" in how.modules:
        rule = f"{' and '.join(inside)} lie inside of moe, which is recomputed whole"
        rest = [name for name in how.modules if name != "moe"]
        yield ConfigError(
            "checkpointing.modules", list(how.modules), rule, [edit.override("checkpointing.modules", rest)]
        )
    if not named:
        yield from _layers_moved(spec)


def _layers_moved(spec: RunSpec) -> Iterator[ConfigError]:
    """Limits of ``--cpu-offloading-num-layers``, whose layers keep what they save on the host."""
    how, path, count = spec.checkpointing, "checkpointing.offload", spec.model.num_hidden_layers
    named = edit.override("checkpointing.offload_modules", ["core_attn"])
    if how.mode != "none":
        rule = "layers are offloaded whole or recomputed (core/transformer/transformer_config.py)"
        inputs = named if how.mode == "selective" else f"checkpointing=selective {named}"
        yield ConfigError(path, True, rule, ["checkpointing=none", inputs])
    if spec.parallel.pipeline > 1:
        rule = "whole layers are not offloaded beside pipeline stages (core/transformer/transformer_config.py)"
        yield ConfigError(path, True, rule, [named, "parallel.pipeline=1"])
    if (how.layers or 0) >= count or count < 2:
        rule = f"one layer at least stays on the GPU, and the model has {count}"
        yield ConfigError(
            "checkpointing.layers", how.layers, rule, [edit.override("checkpointing.layers", max(1, count - 1))]
        )


def _recomputed(spec: RunSpec) -> Iterator[ConfigError]:
    """Modules that this run does not have, or whose scales it would lose (``core/transformer``)."""
    modules, path = spec.checkpointing.modules, "checkpointing.modules"
    if "moe_act" in modules and not (spec.model.num_experts and implementation(spec).grouped):
        rule = "moe_act is part of grouped experts, which need a model with experts and a GPU of capability 8.0"
        way_out = [edit.override(path, [name for name in modules if name != "moe_act"])]
        yield ConfigError(path, list(modules), rule, way_out)
    scaled = [name for name in modules if name in ("moe_act", "layernorm")]
    if recipe(spec) == "delayed" and scaled:
        rule = f"{' and '.join(scaled)} cannot be recomputed with delayed scaling"
        rest = [name for name in modules if name not in scaled]
        way_out = [edit.override(path, rest), "precision.recipe=tensorwise"]
        yield ConfigError(path, list(modules), rule, way_out)
