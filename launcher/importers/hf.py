"""Hugging Face ``config.json``: Llama, Mistral, Qwen2, Qwen3, Mixtral, Qwen3-MoE, DeepSeek-V3 and GPT-2.

The names and the defaults of keys that a file leaves out are those of ``configuration_<model_type>.py`` in
transformers 5.23.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.errors import ConfigError, ConfigErrors
from launcher.importers import Imported, imported, json_mapping, name_from, shown, word_in

_NO_EFFECT = frozenset((
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "architectures",
    "auto_map", "aux_loss_alpha", "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "chunk_size_feed_forward",
    "decoder_start_token_id", "dtype", "eos_token_id", "ep_size", "finetuning_task", "head_dim", "id2label",
    "initializer_range", "is_decoder", "is_encoder_decoder", "label2id", "model_type", "max_window_layers", "n_ctx",
    "n_group", "norm_topk_prob", "output_attentions", "output_hidden_states", "output_router_logits", "pad_token_id",
    "prefix", "pretraining_tp", "problem_type", "qk_head_dim", "return_dict", "rope_interleave",
    "routed_scaling_factor", "router_aux_loss_coef", "scale_attn_weights", "scoring_func", "sep_token_id", "seq_aux",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "task_specific_params", "tokenizer_class", "topk_group", "topk_method", "torch_dtype", "torchscript",
    "transformers_version", "unsloth_version", "use_bfloat16", "use_cache",
))  # fmt: skip
"""Keys without effect on memory: token ids, the file's own history, generation, and how a router weighs its choice."""

_HARMLESS: Mapping[str, tuple[object, ...]] = {
    "add_cross_attention": (False,),
    "attention_dropout": (0, None),
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([], None),
    "moe_layer_freq": (1,),
    "num_nextn_predict_layers": (0, None),
    "quantization_config": (None,),
    "reorder_and_upcast_attn": (False,),
    "rope_scaling": (None,),
    "router_jitter_noise": (0,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "sliding_window": (None,),
    "use_sliding_window": (False,),
}
"""Values with which a key that has no counterpart changes nothing."""

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
    "relu2": "squared_relu",
}
"""Names of ``transformers.activations.ACT2FN`` by ours; ``gelu_new`` and ``gelu_pytorch_tanh`` are one function."""

_KEY_VALUE_HEADS = {"mistral": 8, "qwen2": 32, "qwen3": 32, "mixtral": 8, "qwen3_moe": 4}
"""Class defaults where the key is absent; Llama and DeepSeek-V3 then have one for every attention head."""


@dataclass(slots=True)
class _Config:
    """The file's content; remembers which keys were read, and their errors."""

    content: Mapping[str, Any]
    path: str
    read: set[str] = field(default_factory=set)
    errors: list[ConfigError] = field(default_factory=list)

    def get(self, key: str, default: Any = None) -> Any:
        """A value, or the default where the file has none."""
        self.read.add(key)
        value = self.content.get(key)
        return default if value is None else value

    def size(self, key: str, default: int | None = None) -> int:
        """A count of at least 1 (0 stands in for one that is wrong); without a default the key must be there."""
        value = self.get(key, default)
        least = 0 if default == 0 else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            rule = f"a {self.content['model_type']} config.json holds it as an integer of at least {least}"
            self.errors.append(ConfigError(f"{self.path}: {key}", self.content.get(key), rule))
            return 0
        return value

    def activation(self, key: str) -> str:
        """The activation function by our name."""
        value = self.get(key, "silu")
        known = word_in(_ACTIVATIONS, value)
        if known is None:
            rule = f"no model family here has it; they have {', '.join(_ACTIVATIONS)}"
            self.errors.append(ConfigError(f"{self.path}: {key}", value, rule))
        return known or "silu"

    def number(self, key: str, default: float) -> float:
        """A number, or the default."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.errors.append(ConfigError(f"{self.path}: {key}", value, "is a number"))
            return default
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false, or the default."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            self.errors.append(ConfigError(f"{self.path}: {key}", value, "is true or false"))
        return value is True


def read(text: str, path: str) -> Imported:
    """Read a ``config.json``.

    Args:
        text: The file's content.
        path: The file, for messages.

    Raises:
        ConfigErrors: It is not a ``config.json``, of a model that no family here describes, or sizes are missing.
    """
    content = json_mapping(text, path, "a config.json")
    config = _Config(content, path)
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in _KINDS:
        rule = f"config.json names its model by model_type; understood are {', '.join(_KINDS)}"
        near = difflib.get_close_matches(str(kind), _KINDS, n=2)
        raise ConfigErrors([ConfigError(f"{path}: model_type", kind, rule, [f"model_type: {name}" for name in near])])
    origin = str(content.get("_name_or_path") or "")
    name = name_from(origin or kind)
    source = f"config.json of {name}" if origin else "a config.json"
    model = {"name": name, **_KINDS[kind](config), "source": source}
    if config.errors:
        raise ConfigErrors(config.errors)
    return imported(
        summary=f"The model of {source}",
        source=source,
        choose={},
        settings={f"model.{key}": value for key, value in model.items()},
        not_understood=_not_understood(config),
    )


def _llama(config: _Config) -> dict[str, Any]:
    kind = config.content["model_type"]
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
        "rope_theta": _rope_theta(config),
        "norm_epsilon": config.number("rms_norm_eps", 1e-6),
        "attention_bias": config.flag("attention_bias", kind == "qwen2"),  # Qwen2's module has them in any case.
        "mlp_bias": config.flag("mlp_bias", False),
        "qk_norm": kind in ("qwen3", "qwen3_moe"),
        "max_position_embeddings": config.size("max_position_embeddings"),
        "dropout": 0.0,
        "initializer_range": config.number("initializer_range", 0.02),
    }


def _mixtral(config: _Config) -> dict[str, Any]:
    model = _llama(config)
    return model | {
        "family": "moe",
        "num_experts": config.size("num_local_experts", 8),
        "num_experts_per_tok": config.size("num_experts_per_tok", 2),
        "moe_intermediate_size": model["intermediate_size"],
    }


def _qwen3_moe(config: _Config) -> dict[str, Any]:
    experts = "num_experts" if "num_experts" in config.content else "num_local_experts"
    return _llama(config) | {
        "family": "moe",
        "num_experts": config.size(experts, 128),
        "num_experts_per_tok": config.size("num_experts_per_tok", 8),
        "moe_intermediate_size": config.size("moe_intermediate_size", 768),
    }


def _deepseek(config: _Config) -> dict[str, Any]:
    return _llama(config) | {
        "family": "deepseek",
        "num_key_value_heads": None,  # Every head has keys and values of its own, made from the latent.
        "head_dim": None,
        "num_experts": config.size("n_routed_experts", 256),
        "num_experts_per_tok": config.size("num_experts_per_tok", 8),
        "moe_intermediate_size": config.size("moe_intermediate_size", 2048),
        "num_shared_experts": config.size("n_shared_experts", 0),
        "first_dense_layers": config.size("first_k_dense_replace", 0),
        "q_lora_rank": config.size("q_lora_rank", 0),
        "kv_lora_rank": config.size("kv_lora_rank", 512),
        "qk_nope_head_dim": config.size("qk_nope_head_dim", 128),
        "qk_rope_head_dim": config.size("qk_rope_head_dim", 64),
        "v_head_dim": config.size("v_head_dim", 128),
    }


def _gpt2(config: _Config) -> dict[str, Any]:
    hidden = config.size("n_embd")
    return {
        "family": "gpt",
        "num_hidden_layers": config.size("n_layer"),
        "hidden_size": hidden,
        "intermediate_size": config.size("n_inner", 4 * hidden or 1),
        "num_attention_heads": config.size("n_head"),
        "num_key_value_heads": None,
        "head_dim": None,
        "vocab_size": config.size("vocab_size"),
        "tie_word_embeddings": config.flag("tie_word_embeddings", True),
        "hidden_act": config.activation("activation_function"),
        "normalization": "layernorm",
        "position_embedding": "learned",
        "norm_epsilon": config.number("layer_norm_epsilon", 1e-5),
        "attention_bias": True,
        "mlp_bias": True,
        "qk_norm": False,
        "max_position_embeddings": config.size("n_positions"),
        "dropout": config.number("resid_pdrop", 0.1),
        "initializer_range": config.number("initializer_range", 0.02),
    }


_KINDS: Mapping[str, Callable[[_Config], dict[str, Any]]] = {
    "deepseek_v3": _deepseek,
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _llama,
    "mixtral": _mixtral,
    "qwen2": _llama,
    "qwen3": _llama,
    "qwen3_moe": _qwen3_moe,
}


def _head_dim(config: _Config) -> int | None:
    """Size of a head: as set; Qwen3's class default; else none, which is the hidden size shared among the heads."""
    default = 128 if config.content["model_type"] == "qwen3" else None
    return default if config.get("head_dim") is None else config.size("head_dim")


def _rope_theta(config: _Config) -> float:
    """The base of the rotary angles: a key of its own until transformers 4, part of ``rope_parameters`` since 5."""
    default = 1e6 if config.content["model_type"] == "mixtral" else 1e4
    within = config.content.get("rope_parameters")
    if isinstance(within, Mapping) and "rope_theta" in within:
        default = _Config(within, f"{config.path}: rope_parameters", errors=config.errors).number("rope_theta", default)
    return float(config.number("rope_theta", default))


def _not_understood(config: _Config) -> Iterator[str]:
    """Keys that were not read, have an effect, and hold a value that has one."""
    content = config.content
    for key, value in content.items():
        if key in config.read or key in _NO_EFFECT or not _has_effect(key, value, content):
            continue
        yield shown(key, value)


def _has_effect(key: str, value: object, content: Mapping[str, Any]) -> bool:
    if key == "sliding_window" and not content.get("use_sliding_window", True):
        return False
    if key == "rope_parameters" and isinstance(value, Mapping):
        return bool(value.get("rope_type", "default") != "default")
    if key == "layer_types" and isinstance(value, list):
        return any(kind != "full_attention" for kind in value)
    if key in ("attn_pdrop", "embd_pdrop"):
        return bool(value != content.get("resid_pdrop", 0.1))
    return value not in _HARMLESS.get(key, ())
