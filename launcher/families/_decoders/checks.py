"""Settings of a decoder that its class does not have, and ways of splitting it that nobody has tried."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from launcher.errors import ConfigError
from launcher.families._decoders import TYPES, values
from launcher.spec import ModelSpec, RunSpec, edit

OLDER = (
    "rope_theta", "rope_scaling", "rope_local_base_freq", "rotary_pct", "rotary_emb_base", "partial_rotary_factor",
    "rope_interleaved", "original_max_position_embeddings", "sliding_window_pattern", "_sliding_window_pattern",
    "attention_layers",
)  # fmt: skip
"""Keys that a class takes in other words than those of its defaults, from files of older versions."""

NAMED = (
    "gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_pytorch_tanh", "laplace",
    "leaky_relu", "linear", "mish", "prelu", "quick_gelu", "relu", "relu2", "relu6", "sigmoid", "silu", "swish", "tanh",
    "xielu",
)  # fmt: skip
"""The names of ``transformers.activations.ACT2FN``."""

_NEUTRAL = {
    "rope_theta": 10_000.0,
    "num_shared_experts": 0,
    "first_dense_layers": 0,
    "q_lora_rank": 0,
    "kv_lora_rank": 0,
    "qk_nope_head_dim": 0,
    "qk_rope_head_dim": 0,
    "v_head_dim": 0,
    "attention_output_bias": None,
    "gated": None,
    "rope_parameters": None,
    "sliding_window": None,
    "norm_topk_prob": None,
    "routed_scaling_factor": 1.0,
    "n_group": 0,
    "topk_group": 0,
    "router_aux_loss_coef": 0.0,
}
"""Keys of other families, with the values at which they ask for nothing."""

_UNCUT = ("pipeline", "context", "ulysses")


def of_type(spec: RunSpec) -> Iterator[ConfigError]:
    """A model type that is not described, and keys that its class does not have."""
    model, path = spec.model, "model.model_type"
    if model.model_type not in TYPES:
        rule = f"family=transformers builds {', '.join(TYPES)}"
        near = difflib.get_close_matches(str(model.model_type), TYPES, n=3) or ["gemma2", "olmo2", "gpt_neox"]
        yield ConfigError(path, model.model_type, rule, [f"{path}={each}" for each in near])
        return
    yield from _extra(model)
    yield from _facts(spec)


def splitting(spec: RunSpec) -> Iterator[ConfigError]:
    """Axes along which this version does not cut these models."""
    for axis in _UNCUT:
        degree = getattr(spec.parallel, axis)
        if degree > 1:
            rule = f"this version splits a {spec.model.model_type} by FSDP and ZeRO alone"
            yield ConfigError(f"parallel.{axis}", degree, rule, [f"parallel.{axis}=1", "parallel=fsdp"])


def attention(spec: RunSpec) -> Iterator[ConfigError]:
    """A way of computing attention that the class does not have."""
    model = spec.model
    legal = values.decoder(model).attentions
    if model.attention not in legal:
        rule = f"transformers' {model.model_type} computes it by {' or '.join(legal)}"
        yield ConfigError("model.attention", model.attention, rule, [f"model.attention={each}" for each in legal])


def _extra(model: ModelSpec) -> Iterator[ConfigError]:
    found, known, said = values.decoder(model), values.defaults(model.model_type), values.spoken_for(model)
    for key, given in model.extra.items():
        path = f"model.extra.{key}"
        if key in said and said[key] != "hidden_act":
            way = edit.override(f"model.{said[key]}", given)
            yield ConfigError(path, given, f"it is model.{said[key]} here", [way])
        elif key not in known and key not in OLDER:
            near = difflib.get_close_matches(key, known, n=2)
            rule = f"transformers' {found.config} has no such key"
            yield ConfigError(path, given, rule, [f"model.extra.{each}=..." for each in near])
        elif key in said and given not in NAMED:
            rule = "transformers has no such activation"
            yield ConfigError(path, given, rule, [f"{path}=gelu", f"{path}=silu"])
        elif not _fits(given, known.get(key)):
            yield ConfigError(path, given, f"it is {_kind(known[key])} there", [edit.override(path, known[key])])
    for key, legal in found.legal.items():
        given = model.extra.get(key, known.get(key))
        if key in known and given not in legal and key not in said:
            rule = f"of a {model.model_type} the launcher knows {' or '.join(map(str, legal))} alone"
            yield ConfigError(f"model.extra.{key}", given, rule, ["script=path/to/train.py"])


def _fits(given: object, default: object) -> bool:
    """True if a value is of the kind of the class's default, where that shows one."""
    if given is None or default is None or isinstance(default, list | dict):
        return True
    if isinstance(default, bool) or isinstance(given, bool):
        return type(given) is type(default)
    return isinstance(given, int | float) if isinstance(default, int | float) else type(given) is type(default)


def _kind(default: object) -> str:
    return {bool: "true or false", int: "a number", float: "a number", str: "a word"}[type(default)]


def _facts(spec: RunSpec) -> Iterator[ConfigError]:
    """Keys of ``model`` whose values the class decides, or has by its own configuration."""
    model = spec.model
    for key, wanted in facts(model).items():
        path = f"model.{key}"
        if (found := edit.value_at(spec, path)) == wanted:
            continue
        if key in _NEUTRAL and key in values.defaults(model.model_type):
            rule = f"a {model.model_type} takes it as a key of its class"
            yield ConfigError(path, found, rule, [edit.override(f"+model.extra.{key}", found)])
        else:
            rule = f"a {model.model_type} of transformers has {edit.override(key, wanted).partition('=')[2]}"
            yield ConfigError(path, found, rule, [edit.override(path, wanted)])


def facts(model: ModelSpec) -> dict[str, object]:
    """The keys of ``model`` that are not free, and what they are."""
    found, kind = values.decoder(model), model.model_type
    wanted: dict[str, object] = dict(_NEUTRAL)
    wanted["normalization"] = found.norm
    wanted["position_embedding"] = found.fixed.get("position_embedding", "rope")
    wanted["attention_bias"] = values.flag(model, found.input_bias)
    wanted["mlp_bias"] = values.flag(model, found.mlp_bias)
    wanted["qk_norm"] = values.norms_of_heads(model)
    if "num_key_value_heads" in found.fixed and model.key_value_heads != model.num_attention_heads:
        wanted["num_key_value_heads"] = found.fixed["num_key_value_heads"]
    if found.fixed.get("num_key_value_heads") == 1:
        wanted["num_key_value_heads"] = 1
    if "hidden_act" in found.fixed:
        wanted["hidden_act"] = found.fixed["hidden_act"]
    if values.their_key(kind, "head_dim") is None and model.query_size != model.hidden_size:
        wanted["head_dim"] = None
    if values.their_key(kind, "intermediate_size") is None:
        wanted["intermediate_size"] = found.inner_factor * model.hidden_size
    return wanted | _of_experts(model)


def _of_experts(model: ModelSpec) -> dict[str, object]:
    if values.decoder(model).experts is None:
        return {"num_experts": 0, "moe_intermediate_size": 0}
    own = values.their_key(model.model_type, "moe_intermediate_size")
    return {} if own else {"moe_intermediate_size": model.intermediate_size}
