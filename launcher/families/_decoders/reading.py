"""A ``config.json`` of a decoder as keys of ``model``: its sizes, and the rest of its class's keys as they are."""

from __future__ import annotations

from typing import Any

from launcher.families._decoders import checks, values
from launcher.families._decoders.description import Bias, Decoder
from launcher.rank.family import ConfigFile

_OURS = {"relu2": "squared_relu", "swish": "silu", "gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new"}
_KNOWN = ("silu", "gelu", "gelu_new", "relu", "squared_relu")
_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings")
_ALIBI_LENGTH = 2048  # Positions that are computed have no end; this is what such a model was trained with.


def read(config: ConfigFile) -> dict[str, Any]:
    """The keys of the group ``model``."""
    kind = config.model_type
    there = values.defaults(kind)
    found = values.varied(kind, lambda key: config.get(key, there.get(key)) if config.has(key) else there.get(key))
    model = {"family": "transformers", "model_type": kind, **_sizes(config), **_kinds(config, found)}
    model |= _widths(config, found, model)
    model |= _experts(config, model) if found.experts else {}
    extra: dict[str, Any] = {}
    model |= _activation(config, found, extra)
    model |= _dropout(config, found, extra)
    said = {name for key in values.NAMES if (name := values.their_key(kind, key))}
    rest = [key for key in (*there, *checks.older(kind)) if key not in {*said, *found.dropouts, *values.flags(found)}]
    return {**model, "extra": {**config.extra(rest), **extra}}


def _name(config: ConfigFile, key: str) -> str | None:
    """The name that the file has for one of our keys, which may be one of an older version; else the class's."""
    own = values.their_key(config.model_type, key)
    if own is None or config.has(own):
        return own
    return next((name for name in values.NAMES[key] if config.has(name)), own)


def _sizes(config: ConfigFile) -> dict[str, Any]:
    """Sizes and numbers; absent ones are the class's defaults."""
    there, made = values.defaults(config.model_type), dict[str, Any]()
    for key in _SIZES:
        if name := _name(config, key):
            made[key] = config.size(name, there[values.their_key(config.model_type, key) or name], to=key)
        elif key == "max_position_embeddings":
            made[key] = config.size("seq_length", _ALIBI_LENGTH, to=key)
    for key in ("norm_epsilon", "initializer_range"):
        if name := _name(config, key):
            made[key] = config.number(name, there[name], to=key)
    made["tie_word_embeddings"] = config.flag("tie_word_embeddings", there["tie_word_embeddings"])
    return made


def _widths(config: ConfigFile, found: Decoder, model: dict[str, Any]) -> dict[str, Any]:
    """The MLP's width and the heads, which may follow from other sizes."""
    there, kind = values.defaults(config.model_type), config.model_type
    made: dict[str, Any] = {}
    for key in ("intermediate_size", "num_key_value_heads", "head_dim"):
        own, name = values.their_key(kind, key), _name(config, key)
        made[key] = None
        if own is not None and name is not None and config.get(name, there[own]) is not None:
            made[key] = config.size(name, there[own], to=key)
    made["intermediate_size"] = made["intermediate_size"] or found.inner_factor * model["hidden_size"]
    keys = ("num_key_value_heads",)
    return made | {key: found.fixed[key] for key in keys if key in found.fixed}


def _kinds(config: ConfigFile, found: Decoder) -> dict[str, Any]:
    """Keys of ``model`` that the class or one of its switches decides."""
    there = values.defaults(config.model_type)

    def flag(bias: Bias) -> bool:
        return bias if isinstance(bias, bool) else config.flag(bias, there[bias], to=ours_of[bias])

    ours_of = values.flags(found)
    made = {
        "normalization": found.norm,
        "position_embedding": found.fixed.get("position_embedding", "rope"),
        "attention_bias": flag(found.input_bias),
        "mlp_bias": flag(found.mlp_bias),
        "qk_norm": bool(found.head_norms) and flag(found.with_head_norms or True),
    }
    return made if "sdpa" in found.attentions else {**made, "attention": found.attentions[0]}


def _experts(config: ConfigFile, model: dict[str, Any]) -> dict[str, Any]:
    there, made = values.defaults(config.model_type), {}
    for key in ("num_experts", "num_experts_per_tok", "moe_intermediate_size"):
        if name := _name(config, key):
            made[key] = config.size(name, there[name], to=key)
    return {"moe_intermediate_size": model["intermediate_size"], **made}


def _activation(config: ConfigFile, found: Decoder, extra: dict[str, Any]) -> dict[str, Any]:
    """By our name; one that has another name there stays in ``extra``."""
    name = values.their_key(config.model_type, "hidden_act")
    if name is not None:
        config.say(name, "hidden_act")
    if "hidden_act" in found.fixed:
        return {"hidden_act": found.fixed["hidden_act"]}
    if name is None:
        return {}
    theirs = str(config.get(name, values.defaults(config.model_type)[name]))
    ours = _OURS.get(theirs, theirs)
    ours = ours if ours in _KNOWN else "silu"
    if values.ACTIVATIONS.get(ours, ours) != theirs:
        extra |= config.extra((name,))
        extra[name] = theirs
    return {"hidden_act": ours}


def _dropout(config: ConfigFile, found: Decoder, extra: dict[str, Any]) -> dict[str, Any]:
    """The largest of its dropouts; one that differs stays in ``extra``."""
    there = values.defaults(config.model_type)
    each = {name: float(config.number(name, there[name], to="dropout")) for name in found.dropouts}
    largest = max(each.values(), default=0.0)
    other = {name: value for name, value in each.items() if value != largest}
    config.extra(other)
    extra |= other
    return {"dropout": largest}
