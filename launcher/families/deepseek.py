"""DeepSeek-V2 and V3: multi-head latent attention (MLA), routed and shared experts (arXiv:2412.19437)."""

from __future__ import annotations

from launcher.families import _megatron, _transformers, _weights, llama, moe
from launcher.rank.engine import EngineTraits
from launcher.rank.tensors import SavedTensor, Weight
from launcher.spec import ModelSpec

embedding = llama.embedding
head = llama.head
after_blocks = llama.after_blocks
first_norm_backward = llama.first_norm_backward
kind = moe.kind
backward_extra = moe.backward_extra


def block(model: ModelSpec, layer: int) -> list[Weight]:
    """Weights of two norms, latent attention and experts, or the MLP in the first layers."""
    weights = _weights.norm("input_layernorm", model.hidden_size, model) + latent_attention(model)
    weights += _weights.norm("post_attention_layernorm", model.hidden_size, model)
    if kind(model, layer) == "dense":
        return weights + _weights.feed_forward("mlp", model, model.intermediate_size)
    return weights + _weights.experts(model)


def saved(model: ModelSpec, layer: int, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by two norms, latent attention and experts, or the MLP in the first layers."""
    if engine.library == "megatron":
        rows = _megatron.norm(model.hidden_size, engine) + _megatron.latent_attention(model, engine)
    else:
        readers = ("q_a_proj" if model.q_lora_rank else "q_proj", "kv_a_proj_with_mqa")
        rows = _transformers.norm(model.hidden_size, model, engine, readers=readers)
        rows += _transformers.latent_attention(model, engine)
    if kind(model, layer) == "dense":
        return rows + llama.feed_forward(model, engine)
    return rows + moe.experts(model, engine)


def latent_attention(model: ModelSpec) -> list[Weight]:
    """Down-projections to the latents (whole on every rank), their norms, up-projections by head, output projection."""
    hidden, heads, bias = model.hidden_size, model.num_attention_heads, model.attention_bias
    query = heads * (model.qk_nope_head_dim + model.qk_rope_head_dim)
    if model.q_lora_rank:
        weights = _weights.linear("self_attn.q_a_proj", model.q_lora_rank, hidden, bias=bias, split=False)
        weights.append(Weight(name="self_attn.q_a_layernorm.weight", shape=(model.q_lora_rank,)))
        weights += _weights.linear("self_attn.q_b_proj", query, model.q_lora_rank, bias=False)
    else:
        weights = _weights.linear("self_attn.q_proj", query, hidden, bias=False)
    latent = model.kv_lora_rank + model.qk_rope_head_dim
    up = heads * (model.qk_nope_head_dim + model.v_head_dim)
    weights += _weights.linear("self_attn.kv_a_proj_with_mqa", latent, hidden, bias=bias, split=False)
    weights.append(Weight(name="self_attn.kv_a_layernorm.weight", shape=(model.kv_lora_rank,)))
    weights += _weights.linear("self_attn.kv_b_proj", up, model.kv_lora_rank, bias=False)
    return weights + _weights.linear("self_attn.o_proj", hidden, heads * model.v_head_dim, bias=bias, rows=False)
