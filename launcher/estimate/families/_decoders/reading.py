"""Reading a decoder's ``config.json`` into keys of ``model``: its sizes, and the class's other keys unchanged."""

import json
from collections.abc import Mapping
from typing import Any

from launcher.base.files import JsonObject
from launcher.estimate.families._decoders import checks, values
from launcher.estimate.families._decoders.description import Bias, Decoder
from launcher.estimate.families._hugging_face import ACTIVATIONS
from launcher.estimate.rank.family import ConfigFile

_OURS = {"relu2": "squared_relu", "swish": "silu", "gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new"}
_KNOWN = ("silu", "gelu", "gelu_new", "relu", "squared_relu")
_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings")
_REPLACED = {("gemma", "gelu"): "gelu_pytorch_tanh"}  # The class itself replaces it, whatever the file says.
_ALIBI_LENGTH = 2048  # Computed positions have no limit; such models were trained with this length.


def read(config: ConfigFile) -> JsonObject:
    """Return the keys of the group ``model``."""
    kind = config.model_type
    there = values.defaults(kind)
    found = values.varied(kind, lambda key: config.get(key, there.get(key)) if config.has(key) else there.get(key))
    model = {"family": "transformers", "model_type": kind, **_sizes(config, found), **_kinds(config, found)}
    model |= _widths(config, found, model)
    model |= _experts(config, model) if found.experts else _no_experts(config)
    extra: JsonObject = {}
    model |= _activation(config, found, extra)
    model |= _dropout(config, found, extra)
    said = {name for key in values.NAMES if (name := values.their_key(kind, key))}
    rest = [
        key
        for key in dict.fromkeys((*there, *checks.older(kind)))
        if key not in {*said, *found.dropouts, *values.flags(found)}
    ]
    rest = [key for key in rest if not _is_said_otherwise(config, key)]
    if found.layers and config.get("moe_layer_freq") == [int("moe" in word) for word in _words(config, found)]:
        config.default("moe_layer_freq")
    # Older classes took an integer in place of true or false (Llama 4).
    given = config.extra(rest).items()
    kept = {key: bool(v) if type(v) is int and type(there.get(key)) is bool else v for key, v in given}
    extra = {**kept, **extra}
    _refuse(config, found, extra, said)
    return {**model, "extra": extra}


def _is_said_otherwise(config: ConfigFile, key: str) -> bool:
    """Record a key that is not passed to the class, a pattern in letters or the router's loss; true if it was one."""
    value = config.get(key)
    if key == "output_router_logits" and value is True:
        config.leave(key, "the router's own loss is not added here: the loss is only the cross entropy")
        return True
    if key != "sliding_window_pattern" or not config.has(key) or not isinstance(value, str):
        return False
    if isinstance(config.get("layer_types"), list):
        config.default(key)
    else:
        repeated = value[:-1] == "L" * (len(value) - 1) and value.endswith("G")
        ways = (f'write "{key}": {len(value)} into the file',) if repeated and len(value) > 1 else ()
        config.error(key, "transformers takes letters only if the file also has layer_types", *ways)
    return True


def _refuse(config: ConfigFile, found: Decoder, extra: JsonObject, said: set[str]) -> None:
    """Record errors of keys whose values the description of the class does not cover."""
    for key, legal in found.legal.items():
        outer, _, inner = key.partition(".")
        value = extra.get(outer, legal[0])
        value = value.get(inner, legal[0]) if inner and isinstance(value, Mapping) else extra.get(key, value)
        if outer not in said and value not in legal:
            known = " or ".join(dict.fromkeys(json.dumps(value) for value in legal))
            rule = f"launch supports only {known} for models of the type {config.model_type}"
            config.error(key, rule, "script=path/to/train.py")


def _name(config: ConfigFile, key: str) -> str | None:
    """The name that the file uses for one of our keys, which may be an alias; else the class's own name."""
    own = values.their_key(config.model_type, key)
    if own is None:
        return None
    for name in values.NAMES[key]:
        if name != own and config.has(name) and config.reads(name):  # In the class, too, an alias takes precedence.
            if config.get(own) == config.get(name):
                config.say(own, key)
            return name
    return own


def _default(config: ConfigFile, key: str) -> Any:
    return values.defaults(config.model_type).get(values.their_key(config.model_type, key) or "")


def _words(config: ConfigFile, found: Decoder) -> tuple[str, ...]:
    """The names of the kinds of a file's layers."""
    there = values.defaults(config.model_type)
    number = config.get("num_hidden_layers", there.get("num_hidden_layers", 0))
    return values.words(found, lambda key: config.get(key, there.get(key)), number)


def _number_of_layers(config: ConfigFile, found: Decoder) -> int:
    """Number of layers in a class that counts their names; a different number in the file is left out."""
    words, key = _words(config, found), "num_hidden_layers"
    if config.has(key) and config.get(key) != len(words):
        effect = f"transformers' class counts the {len(words)} layers that are named and ignores this number"
        config.leave(key, f"{effect}; set model.{key}={len(words)}, or name as many layers")
    else:
        config.say(key, key)
    return len(words)


def _sizes(config: ConfigFile, found: Decoder) -> JsonObject:
    there, made = values.defaults(config.model_type), dict[str, Any]()
    for key in _SIZES:
        if name := _name(config, key):
            made[key] = config.size(name, _default(config, key), to=key)
        elif key == "num_hidden_layers" and found.layers is not None:
            made[key] = _number_of_layers(config, found)
        elif key in found.fixed:
            made[key] = found.fixed[key]
        elif key == "max_position_embeddings":
            made[key] = config.size("seq_length", _ALIBI_LENGTH, to=key)
    for key in ("norm_epsilon", "initializer_range"):
        if name := _name(config, key):
            made[key] = config.number(name, _default(config, key), to=key)
    made["tie_word_embeddings"] = config.flag("tie_word_embeddings", there["tie_word_embeddings"])
    if "tie_word_embeddings" in found.fixed and made["tie_word_embeddings"]:
        made["tie_word_embeddings"] = found.fixed["tie_word_embeddings"]
        config.leave("tie_word_embeddings", "no effect: transformers' class ties nothing", matters=False)
    if found.shared and not made["tie_word_embeddings"]:
        config.error("tie_word_embeddings", checks.TIED_BLOCKS, "set it to true in the file")
    return made


def _widths(config: ConfigFile, found: Decoder, model: JsonObject) -> JsonObject:
    there, kind = values.defaults(config.model_type), config.model_type
    made: JsonObject = {}
    for key in ("intermediate_size", "num_key_value_heads", "head_dim"):
        own, name = values.their_key(kind, key), _name(config, key)
        made[key] = None
        if own is None or name is None:
            continue
        if config.get(name, there[own]) is not None:
            made[key] = config.size(name, there[own], to=key)
        elif there[own] is None:
            config.default(name)
    if values.their_key(kind, "head_dim") is None and _is_usual_head(config.get("head_dim"), model):
        config.default("head_dim")
    if found.shared:
        made["head_dim"] = found.joined * model["hidden_size"] // model["num_attention_heads"]
        _enter_derived(config, found, model)
    made["intermediate_size"] = made["intermediate_size"] or found.inner_factor * model["hidden_size"]
    keys = ("num_key_value_heads",)
    return made | {key: found.fixed[key] for key in keys if key in found.fixed}


def _enter_derived(config: ConfigFile, found: Decoder, model: JsonObject) -> None:
    """Record keys that a class with shared blocks derives from others, if they hold the derived value."""
    hidden, heads, words = model["hidden_size"], model["num_attention_heads"], _words(config, found)
    there = values.defaults(config.model_type)
    expand, states = (config.get(key, there[key]) for key in (str(found.sizes[word]) for word in ("expand", "heads")))
    made = {
        "attention_hidden_size": found.joined * hidden,
        "attention_head_dim": found.joined * hidden // heads,
        "mamba_headdim": expand * hidden // states if type(expand) is type(states) is int and states else None,
        "kv_channels": hidden // heads,
        "num_query_groups": heads,
        "hybrid_layer_ids": [layer for layer, word in enumerate(words) if word == "hybrid"],
    }
    config.default(*(key for key, derived in made.items() if config.get(key) == derived))


def _is_usual_head(size: object, model: JsonObject) -> bool:
    """True if a file's head size is the one that follows from the hidden size."""
    hidden, heads = model["hidden_size"], model["num_attention_heads"]
    return size is None or (type(size) is int and size * heads == hidden)


def _kinds(config: ConfigFile, found: Decoder) -> JsonObject:
    """The keys of ``model`` that the class or one of its flags decides."""
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


def _no_experts(config: ConfigFile) -> JsonObject:
    """Record the experts' keys of a class with optional experts whose number is 0."""
    for key in ("num_experts", "num_experts_per_tok"):
        if values.their_key(config.model_type, key) and (name := _name(config, key)):
            config.leave(name, "no effect: no layer has experts", matters=False)
    return {}


def _experts(config: ConfigFile, model: JsonObject) -> JsonObject:
    made = {}
    for key in ("num_experts", "num_experts_per_tok", "moe_intermediate_size"):
        if name := _name(config, key):
            made[key] = config.size(name, _default(config, key), to=key)
    return {"moe_intermediate_size": model["intermediate_size"], **made}


def _activation(config: ConfigFile, found: Decoder, extra: JsonObject) -> JsonObject:
    """The activation by our name; one that we have no name for stays in ``extra``."""
    name = values.their_key(config.model_type, "hidden_act")
    if name is not None:
        config.say(name, "hidden_act")
    if "hidden_act" in found.fixed:
        return {"hidden_act": found.fixed["hidden_act"]}
    if name is None:
        return {}
    given = str(config.get(name, values.defaults(config.model_type)[name]))
    theirs = _REPLACED.get((config.model_type, given), given)
    ours = _OURS.get(theirs, theirs)
    ours = ours if ours in _KNOWN else "silu"
    if ACTIVATIONS.get(ours, ours) != theirs:
        config.extra((name,))
        extra[name] = theirs
    if theirs != given:
        config.leave(name, f"no effect: transformers' class replaces it with {theirs}", matters=False)
    return {"hidden_act": ours}


def _dropout(config: ConfigFile, found: Decoder, extra: JsonObject) -> JsonObject:
    """The largest of the class's dropouts; those that differ stay in ``extra``."""
    there = values.defaults(config.model_type)
    each = {name: float(config.number(name, there[name], to="dropout")) for name in found.dropouts}
    largest = max(each.values(), default=0.0)
    other = {name: value for name, value in each.items() if value != largest}
    config.extra(other)
    extra |= other
    return {"dropout": largest}
