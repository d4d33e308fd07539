"""Limits of Megatron-core's recomputation and offload of activations, and the extra memory of recomputed blocks.

Files named below without a folder are in ``megatron/core``.
"""

from collections.abc import Iterator

from launcher.backends.megatron.implementation import implementation, recipe
from launcher.backends.megatron.traits import dispatcher
from launcher.base.errors import ConfigError
from launcher.estimate.memory import activations
from launcher.estimate.memory.moments import BETWEEN_PASSES, Moments
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.model import RankModel
from launcher.estimate.rank.tensors import SavedTensor
from launcher.spec import RunSpec, edit

_MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
OFFLOAD_MODULES = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act")
_OF_EXPERTS = ("expert_fc1", "moe_act")


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for modules and layers that cannot be recomputed or offloaded."""
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
    """Errors for both ways of offloading activations to the host (``core/transformer/transformer_config.py``)."""
    how, path, modules = spec.checkpointing, "checkpointing.offload", "checkpointing.offload_modules"
    named = list(how.offload_modules)
    if not how.offload:
        return
    back = "checkpointing.offload=false"
    if spec.hardware.device == "cpu":
        rule = "Transformer Engine offloads activations, and it runs only on GPUs"
        yield ConfigError(path, True, rule, [back, "hardware=h100_80g"])
    if unknown := [name for name in named if name not in OFFLOAD_MODULES]:
        rule = f"Megatron-LM offloads the inputs of {', '.join(OFFLOAD_MODULES)}"
        known = [name for name in named if name not in unknown] or ["core_attn"]
        yield ConfigError(modules, named, rule, [edit.override(modules, known)])
    if "attn_proj" in named and "core_attn" not in named:
        rule = "the input of attn_proj is the output of core_attn, whose backward pass needs it"
        yield ConfigError(modules, named, rule, [edit.override(modules, [*named, "core_attn"])])
    if how.mode == "full" and named:
        rule = "a fully recomputed block saves only its own input, which belongs to no module"
        yield ConfigError(modules, named, rule, ["checkpointing=selective", back])
    inside = [name for name in named if name in _OF_EXPERTS]
    if inside and not (spec.model.num_experts and implementation(spec).grouped):
        rule = f"{' and '.join(inside)} belong to grouped experts, which this run does not have"
        rest = [name for name in named if name not in inside]
        yield ConfigError(modules, named, rule, [edit.override(modules, rest or ["core_attn"])])
    elif inside and "moe" in how.modules:
        rule = f"{' and '.join(inside)} are inside moe, which is recomputed whole"
        rest = [name for name in how.modules if name != "moe"]
        yield ConfigError(
            "checkpointing.modules", list(how.modules), rule, [edit.override("checkpointing.modules", rest)]
        )
    if not named:
        yield from _layers_moved(spec)


def _layers_moved(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for ``--cpu-offloading-num-layers``, whose layers keep their saved tensors on the host."""
    how, path, count = spec.checkpointing, "checkpointing.offload", spec.model.num_hidden_layers
    named = edit.override("checkpointing.offload_modules", ["core_attn"])
    if how.mode != "none":
        rule = "layers are either offloaded whole or recomputed (core/transformer/transformer_config.py)"
        inputs = named if how.mode == "selective" else f"checkpointing=selective {named}"
        yield ConfigError(path, True, rule, ["checkpointing=none", inputs])
    if spec.parallel.pipeline > 1:
        rule = "whole layers are not offloaded with pipeline stages (core/transformer/transformer_config.py)"
        yield ConfigError(path, True, rule, [named, "parallel.pipeline=1"])
    if (how.layers or 0) >= count or count < 2:
        rule = f"at least one layer stays on the GPU, and the model has {count}"
        yield ConfigError(
            "checkpointing.layers", how.layers, rule, [edit.override("checkpointing.layers", max(1, count - 1))]
        )


def _recomputed(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for modules that the run lacks, or whose fp8 scales it would lose (``core/transformer``)."""
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


def held(rank: RankModel) -> Iterator[MemoryTerm]:
    """Memory of fully recomputed blocks beyond their inputs."""
    if rank.spec.checkpointing.mode == "full":
        yield from recomputed_forward(rank)
        yield from routed_graphs(rank)


def recomputed_forward(rank: RankModel) -> Iterator[MemoryTerm]:
    """A recomputed block in its forward pass, inside Megatron-core's own attention or after it, whichever is more.

    Attention still references the norm's output, the projection of queries, keys and values, the results of the rotary
    embedding and norms before the last copies, the scores before their softmax and the product with the values.
    """
    kind, engine, model = next(reversed(rank.blocks), None), rank.engine, rank.spec.model
    if kind is None or not kind.recomputed or implementation(rank.spec).transformer_engine:
        return
    q, kv, z = model.query_size, model.key_value_size, engine.size
    turned = q + kv if model.position_embedding == "rope" else 0
    scores = [row for row in kind.saved if row.name == "scores"]
    named = SavedTensor("named by attention", z * (2 * q + 2 * kv + turned), "tensor", "attention")
    output = SavedTensor("output of a linear", z * model.hidden_size, "residual", "norm")
    attention = [row for row in kind.saved if row.part in ("attention", "core_attention")]
    behind = [row for row in kind.saved if row.part in ("mlp", "activation", "moe")]
    k = max(map(rank.token_bytes, ([*attention, *scores, named, output], [*behind, output, output])))
    what, source = "tensors inside one block", "Megatron-core transformer/attention.py, trace of the live tensors"
    yield term("temporary", ("forward",), what, "k * tok", source, k=k, tok=rank.tokens)


def routed_graphs(rank: RankModel) -> Iterator[MemoryTerm]:
    """Inputs and gradients of recomputed layers with experts, which live until the layer runs again.

    The dispatcher references the router's probabilities, and with them the graph that backward rebuilt, whose leaf is
    the layer's input (``dispatch_preprocess`` of ``transformer/moe/token_dispatcher.py``, ``CheckpointFunction`` of
    ``tensor_parallel/random.py``). All of them are still alive in the first layer's next forward pass.
    """
    routed = [bool(rank.blocks[kind].elements.expert and rank.blocks[kind].recomputed) for kind in rank.order]
    if not any(routed) or rank.view.in_flight > 1 or dispatcher(rank.spec.backend) != "all_to_all":
        return
    what, source = "recomputed graphs of routers", "Megatron-core transformer/moe/token_dispatcher.py"
    done: dict[Moments, int] = {BETWEEN_PASSES | {"root_backward"}: 2 * sum(routed)}
    done[frozenset(("forward",))] = max(0, 2 * sum(routed) + 1 - len(routed))
    for moment, place in activations.places(rank).items():
        done[frozenset((moment,))] = 2 * sum(routed[place + 1 :])
    h, z_res = rank.spec.model.hidden_size * rank.view.residual, rank.engine.residual_size
    for moments, n in done.items():
        yield term("temporary", moments, what, "n * z_res * h * tok", source, n=n, z_res=z_res, h=h, tok=rank.tokens)
