"""Llama and models of its shape (Mistral, Qwen): RMSNorm, rotary positions, grouped queries, gated MLP."""

from launcher.estimate.families import _hugging_face, _megatron, _transformers, _weights
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.family import FamilyTraits
from launcher.estimate.rank.tensors import SavedTensor, Weight
from launcher.spec import ModelSpec

traits = FamilyTraits(
    mask=_transformers.mask,
    adapter_targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    attention_output="self_attn.o_proj.weight",
    not_linear=None,
    names=_hugging_face.NAMES,
    kernels=("liger",),
    model_types=("internlm3", "iquestcoder", "llama", "mistral", "qwen2", "qwen3"),
)

embedding = _weights.token_embedding
head = _weights.output
saves_input = _transformers.saves_input
transformers_config = _hugging_face.transformers_config
not_computed = _hugging_face.not_computed
read_config = _hugging_face.read_config


def block(model: ModelSpec, layer: int) -> list[Weight]:
    """Weights of two norms, attention and MLP."""
    mlp = _weights.feed_forward("mlp", model, model.intermediate_size)
    return _weights.between_norms(model, _weights.grouped_attention(model), mlp)


def kind(model: ModelSpec, layer: int) -> str:
    """``dense``: all blocks are equal."""
    return "dense"


def saved(model: ModelSpec, layer: int, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by two norms, attention and MLP, in bytes per token."""
    rows = attention(model, engine) + feed_forward(model, engine)
    return _transformers.compiled(rows, model, engine) if engine.compiled else rows


def backward_extra(model: ModelSpec, layer: int, engine: EngineTraits) -> list[SavedTensor]:
    """Gradients inside the MLP, in bytes per token."""
    return mlp_gradients(model, engine, model.intermediate_size)


def after_blocks(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by the last norm, whose output the output projection reads."""
    if engine.library == "megatron":
        return _megatron.norm(model.hidden_size, engine)
    return _transformers.norm(model.hidden_size, model, engine, readers=("lm_head",))


def first_norm_backward(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors alive at the end of a block's backward pass, in its first norm."""
    if engine.library == "megatron":
        return _megatron.first_norm_backward(model, engine)
    return _transformers.first_norm_backward(model, engine)


def mlp_gradients(model: ModelSpec, engine: EngineTraits, width: int) -> list[SavedTensor]:
    """Gradients inside an MLP of ``width`` features."""
    if engine.library == "megatron":
        return _megatron.backward_extra(model, engine, width)
    return _transformers.backward_extra(model, engine, width)


def attention(
    model: ModelSpec,
    engine: EngineTraits,
    readers: tuple[str, ...] = ("q_proj", "k_proj", "v_proj"),
    *,
    wide_softmax: bool = True,
) -> list[SavedTensor]:
    """Tensors saved by the norm before attention, whose output the ``readers`` read, and by attention."""
    if engine.library == "megatron":
        return _megatron.norm_of_attention(model.hidden_size, engine) + _megatron.attention(model, engine)
    rows = _transformers.norm(model.hidden_size, model, engine, readers=readers)
    return _transformers.behind(rows, "attention", _transformers.attention(model, engine, wide_softmax=wide_softmax))


def feed_forward(
    model: ModelSpec, engine: EngineTraits, readers: tuple[str, ...] = ("gate_proj", "up_proj")
) -> list[SavedTensor]:
    """Tensors saved by the norm before the MLP, whose output the ``readers`` read, and by the MLP."""
    hidden, width = model.hidden_size, model.intermediate_size
    if engine.library == "megatron":
        rows = _megatron.norm(hidden, engine, linears=1) + _megatron.feed_forward(model, engine, width)
        return rows + _megatron.dropout(model, engine)
    rows = _transformers.norm(hidden, model, engine, readers=readers if model.gated else readers[-1:])
    return _transformers.behind(rows, "mlp", _transformers.feed_forward(model, engine, width))
