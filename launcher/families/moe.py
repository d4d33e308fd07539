"""Mixture of experts on Llama's attention (Mixtral, Qwen-MoE): routed experts, shared experts, first dense layers."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any

from launcher.families import _hugging_face, _megatron, _transformers, _weights, llama
from launcher.rank.engine import EngineTraits
from launcher.rank.family import ConfigFile, FamilyTraits
from launcher.rank.tensors import SavedTensor, Weight
from launcher.spec import ModelSpec

traits = FamilyTraits(
    adapter_targets=("q_proj", "k_proj", "v_proj", "o_proj"),
    attention_output="self_attn.o_proj.weight",
    experts=True,
    not_linear=_hugging_face.EXPERTS,
    names=_hugging_face.NAMES,
    model_types=("mixtral", "qwen3_moe"),
)

embedding = llama.embedding
head = llama.head
after_blocks = llama.after_blocks
first_norm_backward = llama.first_norm_backward
saves_input = llama.saves_input
transformers_config = _hugging_face.transformers_config
not_computed = _hugging_face.not_computed


def block(model: ModelSpec, layer: int) -> list[Weight]:
    """Weights of a Llama block, with experts in place of the MLP after the first dense layers."""
    if kind(model, layer) == "dense":
        return llama.block(model, layer)
    weights = _weights.norm("input_layernorm", model.hidden_size, model)
    weights += _weights.grouped_attention(model, output_bias=False)
    weights += _weights.norm("post_attention_layernorm", model.hidden_size, model)
    return weights + _weights.experts(model)


def kind(model: ModelSpec, layer: int) -> str:
    """``dense`` for the first layers, ``moe`` for the rest."""
    return "dense" if layer < model.first_dense_layers or not model.num_experts else "moe"


def saved(model: ModelSpec, layer: int, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by a Llama block, with experts in place of the MLP after the first dense layers."""
    if kind(model, layer) == "dense":
        return llama.saved(model, layer, engine)
    return llama.attention(model, engine) + experts(model, engine)


def backward_extra(model: ModelSpec, layer: int, engine: EngineTraits) -> list[SavedTensor]:
    """Gradients inside the MLP, or inside the experts that a token meets: all at once, or one after the other.

    Grouped products run in the weights' own format under autocast too (``_transformers.routed``).
    """
    if kind(model, layer) == "dense":
        return llama.mlp_gradients(model, engine, model.intermediate_size)
    if engine.library == "transformers":
        if not engine.grouped_experts:
            one = ceil(Fraction(model.moe_intermediate_size * model.num_experts_per_tok, model.num_experts))
            return llama.mlp_gradients(model, engine, max(one, model.num_shared_experts * model.moe_intermediate_size))
        engine = replace(engine, size=engine.residual_size)
    width = model.moe_intermediate_size * (model.num_experts_per_tok + model.num_shared_experts)
    rows = llama.mlp_gradients(model, engine, width)
    return rows if engine.library == "megatron" else [*rows, _transformers.reordering(model, rows)]


def experts(model: ModelSpec, engine: EngineTraits, *, wide_router: bool = False) -> list[SavedTensor]:
    """Tensors saved by the norm before the experts, the routed experts that one token meets, and the shared ones."""
    hidden, shared = model.hidden_size, model.num_shared_experts * model.moe_intermediate_size
    if engine.library == "megatron":
        rows = _megatron.norm(hidden, engine) + _megatron.routed(model, engine) + _megatron.dropout(model)
        return rows + (_megatron.feed_forward(model, engine, shared, "moe") if shared else [])
    rows = _transformers.norm(hidden, model, engine, readers=("gate", "experts"))
    rows += _transformers.routed(model, engine, wide_router=wide_router)
    return rows + (_transformers.feed_forward(model, engine, shared) if shared else [])


def read_config(config: ConfigFile) -> dict[str, Any]:
    """Mixtral, whose MLPs are all experts, and Qwen3-MoE."""
    model = llama.read_config(config) | {"family": "moe"}
    if config.model_type == "mixtral":
        return model | {
            "num_experts": config.size("num_local_experts", 8),
            "num_experts_per_tok": config.size("num_experts_per_tok", 2),
            "moe_intermediate_size": model["intermediate_size"],
        }
    return model | {
        "num_experts": config.size("num_experts" if config.has("num_experts") else "num_local_experts", 128),
        "num_experts_per_tok": config.size("num_experts_per_tok", 8),
        "moe_intermediate_size": config.size("moe_intermediate_size", 768),
    }
