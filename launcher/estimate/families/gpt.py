"""GPT-2 and GPT-3: LayerNorm with biases, learned positions, one projection for queries, keys and values, plain MLP.

A block has two norms, ``c_attn`` for queries, keys and values together, and an MLP without a gate; the token embedding
is also the output projection. The ``transformers`` class is GPT-2's, whose checkpoints store projections transposed.
"""

from collections.abc import Iterator, Mapping

from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.estimate.families import _hugging_face, _weights, llama
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.family import CheckpointNames, ConfigFile, FamilyTraits, TransformersConfig
from launcher.estimate.rank.tensors import SavedTensor, Weight
from launcher.spec import ModelSpec, RunSpec, edit

traits = FamilyTraits(
    adapter_targets=("c_attn", "c_proj", "c_fc"),
    attention_output="attn.c_proj.weight",
    output_bias=True,
    keeps_embeddings=True,
    transposed=True,
    not_linear="GPT-2's transposed weights (Conv1D), which fuse queries, keys and values",
    names=CheckpointNames(
        embedding="transformer.wte.weight",
        positions="transformer.wpe.weight",
        norm="transformer.ln_f",
        head="lm_head.weight",
        block="transformer.h.{}",
        modules={
            "input_layernorm": "ln_1",
            "pre_mlp_layernorm": "ln_2",
            "self_attention.linear_proj": "attn.c_proj",
            "mlp.linear_fc2": "mlp.c_proj",
        },
        attention_inputs=("attn.c_attn",),
        mlp_inputs=("mlp.c_fc",),
    ),
    model_types=("gpt2", "gpt-sw3"),
)

_LEGAL: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("gelu_new", "gelu", "relu", "squared_relu"),
    "normalization": ("layernorm",),
    "position_embedding": ("learned",),
    "attention_bias": (True,),
    "mlp_bias": (True,),
    "qk_norm": (False,),
    "num_experts": (0,),
    "gated": (False,),
    "attention_output_bias": (None, True),
    "sliding_window": (None,),
}
"""Values that GPT2LMHeadModel supports."""

embedding = llama.embedding
head = llama.head
kind = llama.kind
after_blocks = llama.after_blocks
first_norm_backward = llama.first_norm_backward
saves_input = llama.saves_input
backward_extra = llama.backward_extra


def block(model: ModelSpec, layer: int) -> list[Weight]:
    """Weights of two norms, attention and MLP; the output projection has a bias if the others have one."""
    weights = _weights.norm("ln_1", model.hidden_size, model)
    weights += attention(model)
    weights += _weights.norm("ln_2", model.hidden_size, model)
    return weights + _weights.feed_forward("mlp", model, model.intermediate_size, up="c_fc", down="c_proj")


def attention(model: ModelSpec) -> list[Weight]:
    """Weights of one projection for queries, keys and values, and of the output projection."""
    hidden, bias = model.hidden_size, model.attention_bias
    weights = _weights.linear("attn.c_attn", model.query_size + 2 * model.key_value_size, hidden, bias=bias)
    if model.qk_norm:
        weights += _weights.head_norms("attn", model)
    output = bias if model.attention_output_bias is None else model.attention_output_bias
    return weights + _weights.linear("attn.c_proj", hidden, model.query_size, bias=output, rows=False)


def saved(model: ModelSpec, layer: int, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by two norms, attention and MLP, in bytes per token."""
    rows = llama.attention(model, engine, ("c_attn",), wide_softmax=False)
    return rows + llama.feed_forward(model, engine, ("c_fc",))


def transformers_config(model: ModelSpec) -> TransformersConfig:
    """GPT-2."""
    settings = {
        "vocab_size": model.vocab_size,
        "n_positions": model.max_position_embeddings,
        "n_embd": model.hidden_size,
        "n_layer": model.num_hidden_layers,
        "n_head": model.num_attention_heads,
        "n_inner": model.intermediate_size,
        "activation_function": _hugging_face.ACTIVATIONS.get(model.hidden_act, model.hidden_act),
        "resid_pdrop": model.dropout,
        "embd_pdrop": model.dropout,
        "attn_pdrop": model.dropout,
        "layer_norm_epsilon": model.norm_epsilon,
        "initializer_range": model.initializer_range,
        "tie_word_embeddings": model.tie_word_embeddings,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return TransformersConfig(name="GPT2Config", settings=settings)


def not_computed(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of values that GPT2LMHeadModel does not support, and of other numbers or sizes of heads."""
    yield from _hugging_face.other_values(spec, _LEGAL)
    model = spec.model
    if model.key_value_heads != model.num_attention_heads:
        path, rule = "model.num_key_value_heads", "GPT-2 has a key and value head for every attention head"
        yield ConfigError(path, model.num_key_value_heads, rule, [f"{path}=null"])
    if model.query_size != model.hidden_size:
        yield from edit.refused(spec, "model.head_dim", f"GPT-2's heads divide the hidden size {model.hidden_size}")


def read_config(config: ConfigFile) -> JsonObject:
    """GPT-2."""
    hidden = config.size("n_embd", to="hidden_size")
    activation = config.activation("activation_function", to="hidden_act")
    dropout = config.number("resid_pdrop", 0.1, to="dropout")
    for key in ("attn_pdrop", "embd_pdrop"):
        if config.get(key, 0.1) == dropout:
            config.say(key, "dropout")
        else:
            config.leave(key, f"launch uses the rate of resid_pdrop here as well, {dropout}")
    return {
        "family": "gpt",
        "num_hidden_layers": config.size("n_layer", to="num_hidden_layers"),
        "hidden_size": hidden,
        "intermediate_size": config.size("n_inner", 4 * hidden or 1, null=4 * hidden or 1, to="intermediate_size")
        if config.has("n_inner")
        else 4 * hidden,
        "num_attention_heads": config.size("n_head", to="num_attention_heads"),
        "num_key_value_heads": None,
        "head_dim": None,
        "vocab_size": config.size("vocab_size"),
        "tie_word_embeddings": config.flag("tie_word_embeddings", True),
        "hidden_act": activation,
        "normalization": "layernorm",
        "position_embedding": "learned",
        "norm_epsilon": config.number("layer_norm_epsilon", 1e-5, to="norm_epsilon"),
        "attention_bias": True,
        "mlp_bias": True,
        "qk_norm": False,
        "max_position_embeddings": config.size("n_positions", to="max_position_embeddings"),
        "dropout": dropout,
        "initializer_range": config.number("initializer_range", 0.02),
        **({"gated": False} if activation == "silu" else {}),
    }
