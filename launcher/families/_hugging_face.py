"""The ``transformers`` classes of Llama's relatives: their arguments, what they cannot do, what describes them.

The names and the defaults of keys that a ``config.json`` leaves out are those of ``configuration_<model_type>.py`` in
transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.errors import ConfigError
from launcher.rank.family import CheckpointNames, ConfigFile, TransformersConfig
from launcher.spec import ModelSpec, RunSpec, edit, nearest

NAMES = CheckpointNames(
    embedding="model.embed_tokens.weight",
    positions="",
    norm="model.norm",
    head="lm_head.weight",
    block="model.layers.{}",
    modules={
        "input_layernorm": "input_layernorm",
        "pre_mlp_layernorm": "post_attention_layernorm",
        "self_attention.linear_proj": "self_attn.o_proj",
        "self_attention.q_layernorm": "self_attn.q_norm",
        "self_attention.k_layernorm": "self_attn.k_norm",
        "mlp.linear_fc2": "mlp.down_proj",
        "mlp.router": "mlp.gate",
    },
    attention_inputs=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    mlp_inputs=("mlp.gate_proj", "mlp.up_proj"),
)

EXPERTS = "the experts, whose weights are held together in one tensor of three dimensions"

_LEGAL: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "normalization": ("rmsnorm",),
    "position_embedding": ("rope",),
    "dropout": (0.0,),
    "kv_lora_rank": (0,),
    "num_shared_experts": (0,),
    "first_dense_layers": (0,),
}
"""LlamaForCausalLM, Qwen2ForCausalLM (with attention_bias), Qwen3ForCausalLM (with qk_norm), MixtralForCausalLM."""

_KEY_VALUE_HEADS = {"mistral": 8, "qwen2": 32, "qwen3": 32, "mixtral": 8, "qwen3_moe": 4}
"""Class defaults where the key is absent; Llama and DeepSeek-V3 then have one for every attention head."""


def transformers_config(model: ModelSpec) -> TransformersConfig:
    """Llama, or Qwen2, Qwen3 and Mixtral, which have one thing more each."""
    common = {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.moe_intermediate_size or model.intermediate_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.key_value_heads,
        "head_dim": model.head_size,
        "hidden_act": model.hidden_act,
        "max_position_embeddings": model.max_position_embeddings,
        "initializer_range": model.initializer_range,
        "rms_norm_eps": model.norm_epsilon,
        "tie_word_embeddings": model.tie_word_embeddings,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if model.num_experts:
        experts = {"num_local_experts": model.num_experts, "num_experts_per_tok": model.num_experts_per_tok}
        return TransformersConfig(name="MixtralConfig", settings={**common, **experts, "sliding_window": None})
    if model.qk_norm:
        return TransformersConfig(name="Qwen3Config", settings={**common, "attention_bias": model.attention_bias})
    if model.attention_bias:  # Qwen2 has biases on query, key and value and none on the output; Llama has all four.
        return TransformersConfig(name="Qwen2Config", settings=common)
    return TransformersConfig(name="LlamaConfig", settings={**common, "mlp_bias": model.mlp_bias})


def not_computed(spec: RunSpec) -> Iterator[ConfigError]:
    """Values that these classes do not have; biases and norms that exist, but not in one class."""
    yield from other_values(spec, _LEGAL)
    model = spec.model
    special = [key for key in ("qk_norm", "attention_bias", "mlp_bias") if getattr(model, key)]
    if model.num_experts:
        special.append("num_experts")
    if len(special) > 1:
        key = f"model.{special[0]}"
        rule = f"no class of transformers has both it and model.{special[1]}"
        yield ConfigError(key, True, rule, [f"{key}=false"])
    heads, hidden = model.num_attention_heads, model.hidden_size
    if not special and model.head_dim is not None and hidden % heads:  # validate_architecture of LlamaConfig.
        rule = f"transformers' Llama demands a multiple of its {heads} attention heads, whatever the size of a head is"
        ways = [edit.override("model.hidden_size", size) for size in nearest.multiples_around(hidden, heads, 1)]
        yield ConfigError("model.hidden_size", hidden, rule, ways)


def other_values(spec: RunSpec, legal: Mapping[str, tuple[object, ...]]) -> Iterator[ConfigError]:
    """Keys of the model with values that its classes do not have."""
    for key, values in legal.items():
        path = f"model.{key}"
        if (value := edit.value_at(spec, path)) not in values:
            way_out = [edit.override(path, item) for item in values]
            names = " or ".join(way.partition("=")[2] for way in way_out)
            whose = f"transformers' {spec.model.family} models"
            yield ConfigError(path, value, f"{whose} have {names}", way_out)


def read_config(config: ConfigFile) -> dict[str, Any]:
    """Llama, Mistral, Qwen2 and Qwen3."""
    kind = config.model_type
    heads = config.size("num_attention_heads")
    return {
        "family": "llama",
        "num_hidden_layers": config.size("num_hidden_layers"),
        "hidden_size": config.size("hidden_size"),
        "intermediate_size": config.size("intermediate_size"),
        "num_attention_heads": heads,
        "num_key_value_heads": config.size("num_key_value_heads", _KEY_VALUE_HEADS.get(kind, heads or 1)),
        "head_dim": _head_dim(config),
        "vocab_size": config.size("vocab_size"),
        "tie_word_embeddings": config.flag("tie_word_embeddings", False),
        "hidden_act": config.activation("hidden_act"),
        "normalization": "rmsnorm",
        "position_embedding": "rope",
        "rope_theta": config.rope_theta(1e6 if kind == "mixtral" else 1e4),
        "norm_epsilon": config.number("rms_norm_eps", 1e-6),
        "attention_bias": config.flag("attention_bias", kind == "qwen2"),  # Qwen2's module has them in any case.
        "mlp_bias": config.flag("mlp_bias", False),
        "qk_norm": kind in ("qwen3", "qwen3_moe"),
        "max_position_embeddings": config.size("max_position_embeddings"),
        "dropout": 0.0,
        "initializer_range": config.number("initializer_range", 0.02),
    }


def _head_dim(config: ConfigFile) -> int | None:
    """As set; Qwen3's class default; else none, which is the hidden size shared among the heads."""
    default = 128 if config.model_type == "qwen3" else None
    return default if config.get("head_dim") is None else config.size("head_dim")
