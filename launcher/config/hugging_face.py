"""Hugging Face ``config.json`` of the model types that a family reads: Llama, Mixtral, DeepSeek-V3, GPT-2 and more.

The family says which keys it reads and what they are here; this module finds it, and names what nobody has read.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher import registry
from launcher.config.foreign import json_mapping, name_from, shown, word_in
from launcher.errors import ConfigError, ConfigErrors
from launcher.rank.family import Family

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

_OWN_SCRIPT = ("script=path/to/train.py",)
"""The way to train a model that no family describes; a family may also be added (docs/extending.md)."""

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


@dataclass(slots=True)
class _Config:
    """The file's content; remembers which keys were read, and their errors."""

    content: Mapping[str, Any]
    path: str
    read: set[str] = field(default_factory=set)
    errors: list[ConfigError] = field(default_factory=list)

    @property
    def model_type(self) -> str:
        """The name of its class."""
        return str(self.content["model_type"])

    def has(self, key: str) -> bool:
        """True if the file has the key."""
        return key in self.content

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

    def extra(self, keys: Iterable[str]) -> dict[str, Any]:
        """The file's values of those of some keys that it has, as they are; they are kept for the class."""
        found = {key: self.content[key] for key in keys if key in self.content}
        self.read |= found.keys()
        return found

    def rope_theta(self, default: float) -> float:
        """The base of the rotary angles: a key of its own until transformers 4, part of ``rope_parameters`` since 5."""
        within = self.content.get("rope_parameters")
        if isinstance(within, Mapping) and "rope_theta" in within:
            default = _Config(within, f"{self.path}: rope_parameters", errors=self.errors).number("rope_theta", default)
        return float(self.number("rope_theta", default))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A ``config.json`` in our words.

    Attributes:
        model: Values of the keys of ``model``.
        not_understood: Its settings without a counterpart here.
    """

    model: Mapping[str, Any]
    not_understood: tuple[str, ...]


def read(text: str, path: str, *, name: str | None = None, source: str | None = None) -> ModelFile:
    """Read a ``config.json``.

    Args:
        text: The file's content.
        path: The file, for messages.
        name: The model's name; None takes the one that the file may hold, else its model type.
        source: Where it is from; None says as much as the file does.

    Raises:
        ConfigErrors: It is not a ``config.json``, of a model that no family here describes, or sizes are missing.
    """
    content = json_mapping(text, path, "a config.json")
    config = _Config(content, path)
    kind = content.get("model_type")
    known = _families(kind if isinstance(kind, str) else "")
    if not isinstance(kind, str) or kind not in known:
        rule = f"config.json names its model by model_type; understood are {', '.join(known)}"
        near = [f"model_type: {near}" for near in difflib.get_close_matches(str(kind), known, n=2)]
        raise ConfigErrors([ConfigError(f"{path}: model_type", kind, rule, near or _OWN_SCRIPT)])
    origin = str(content.get("_name_or_path") or "")
    called = name or name_from(origin or kind)
    said = source or (f"config.json of {called}" if origin else "a config.json")
    model = {"name": called, **known[kind].read_config(config), "source": said}
    if config.errors:
        raise ConfigErrors(config.errors)
    return ModelFile(model=model, not_understood=tuple(_not_understood(config)))


def _families(kind: str) -> dict[str, Family]:
    """The families by the model types that they read; installed packages are imported where no shipped one reads it."""
    found = _readers(registry.shipped("families"))
    more = {} if kind in found else _readers(registry.offered("families"))
    return dict(sorted({**more, **found}.items()))


def _readers(names: Iterable[str]) -> dict[str, Family]:
    families: list[Family] = [registry.load("families", name) for name in names]
    return {kind: family for family in families for kind in family.traits.model_types}


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
