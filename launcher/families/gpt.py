"""GPT-2 and GPT-3: LayerNorm with biases, learned positions, one projection for queries, keys and values, plain MLP."""

from __future__ import annotations

from launcher.families import _megatron, _transformers, _weights, llama
from launcher.rank.engine import EngineTraits
from launcher.rank.tensors import SavedTensor, Weight
from launcher.spec import ModelSpec


def embedding(model: ModelSpec, vocabulary: int) -> list[Weight]:
    """The token table and learned positions."""
    return _weights.token_embedding(model, vocabulary)


def block(model: ModelSpec, layer: int) -> list[Weight]:
    """Two norms, attention and MLP; the output projection has a bias where the others have one."""
    weights = _weights.norm("ln_1", model.hidden_size, model)
    weights += attention(model)
    weights += _weights.norm("ln_2", model.hidden_size, model)
    return weights + _weights.feed_forward("mlp", model, model.intermediate_size, up="c_fc", down="c_proj")


def attention(model: ModelSpec) -> list[Weight]:
    """One projection for queries, keys and values, and the output projection."""
    hidden, bias = model.hidden_size, model.attention_bias
    weights = _weights.linear("attn.c_attn", model.query_size + 2 * model.key_value_size, hidden, bias=bias)
    if model.qk_norm:
        weights += _weights.head_norms("attn", model)
    return weights + _weights.linear("attn.c_proj", hidden, model.query_size, bias=bias, rows=False)


def head(model: ModelSpec, vocabulary: int) -> list[Weight]:
    """The last norm and, where it is not the embedding, the output projection."""
    return _weights.output(model, vocabulary)


def kind(model: ModelSpec, layer: int) -> str:
    """All blocks are equal."""
    return "dense"


def saved(model: ModelSpec, layer: int, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by two norms, attention and MLP, in bytes for one token."""
    hidden, width = model.hidden_size, model.intermediate_size
    if engine.library == "megatron":
        rows = _megatron.norm(hidden, engine) + _megatron.attention(model, engine)
        rows += _megatron.norm(hidden, engine) + _megatron.feed_forward(model, engine, width)
        return rows + _megatron.dropout(model)
    rows = _transformers.norm(hidden, model, engine, readers=("c_attn",)) + _transformers.attention(model, engine)
    rows += _transformers.norm(hidden, model, engine, readers=("c_fc",))
    return rows + _transformers.feed_forward(model, engine, width)


after_blocks = llama.after_blocks
first_norm_backward = llama.first_norm_backward


def backward_extra(model: ModelSpec, layer: int, engine: EngineTraits) -> list[SavedTensor]:
    """Gradients inside the MLP, in bytes for one token."""
    return llama.mlp_gradients(model, engine, model.intermediate_size)
