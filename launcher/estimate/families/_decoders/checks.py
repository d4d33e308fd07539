"""Errors of settings that a decoder's class does not support, and of ways to split it that were never tested."""

from collections.abc import Iterator, Mapping, Sequence

from launcher.base.errors import ConfigError
from launcher.estimate.families._decoders import TYPES, layers, values
from launcher.estimate.families._decoders.description import WORDS
from launcher.spec import ModelSpec, RunSpec, edit
from launcher.spec.parse import closest

_ROTARY = frozenset(TYPES).difference(WORDS["not_rotary"])
_OLDER: Mapping[str, Sequence[str]] = WORDS["older"]
"""Keys without a default in the class that it still accepts, from files of older versions (a test)."""

_LAYERS = {"layer_types": ("full_attention", "sliding_attention"), "attention_layers": ("global", "local")}
"""Keys that name each layer's kind, and the names."""

_PATTERNS = ("layers_block_type", "layer_types", "hybrid_override_pattern")
"""Keys that name each layer's kind in classes with several kinds."""

_EPSILON = 1e-5  # The default of ``model.norm_epsilon``; a class without such a key computes with its own.

NAMED: Sequence[str] = WORDS["activations"]
"""The names of ``transformers.activations.ACT2FN``."""

_NEUTRAL: Mapping[str, object] = WORDS["neutral"]
"""Keys of other families, with their neutral values."""

_EXAMPLES: Mapping[str, object] = WORDS["examples"]
"""Example values that show the type of keys whose default is null, or that have no default in the class."""

TIED_BLOCKS = "transformers' class then shares no blocks either: each layer has one, with unused low-rank pairs"

_UNCUT = ("context", "ulysses")
_UNSTAGED = frozenset(("bloom", "codegen", "falcon", "falcon_h1", "gpt_neo", "gptj", "mpt", "opt", "zamba2"))
"""Types whose classes expect more than hidden states from a layer, or add positions to them, so no stage is cut."""


def older(model_type: str) -> tuple[str, ...]:
    """Keys that a class accepts without a default."""
    return tuple(key for key, types in _OLDER.items() if model_type in types)


def of_type(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of a model type that is not described, and of keys that its class does not have."""
    model, path = spec.model, "model.model_type"
    if model.model_type not in TYPES:
        rule = f"family=transformers builds {', '.join(TYPES)}"
        near = closest(str(model.model_type), list(TYPES)) or ["gemma2", "olmo2", "gpt_neox"]
        yield ConfigError(path, model.model_type, rule, [f"{path}={each}" for each in near])
        return
    yield from _extra(model)
    yield from _kinds(model)
    yield from _facts(spec)


def splitting(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of parallel axes by which this version does not split these models."""
    kind = spec.model.model_type
    for axis in ("pipeline", *_UNCUT) if kind in _UNSTAGED else _UNCUT:
        degree = getattr(spec.parallel, axis)
        if degree > 1:
            rule = f"this version does not split a {kind} this way: {_why(spec.model, axis)}"
            yield ConfigError(f"parallel.{axis}", degree, rule, [f"parallel.{axis}=1", "parallel=fsdp"])
    if values.decoder(spec.model).shared and spec.adapter.bits:
        rule = f"several layers of a {kind} share one block, whose weights this version does not quantise"
        yield ConfigError("adapter.name", spec.adapter.name, rule, ["adapter=lora"])
    experts = values.decoder(spec.model).experts
    if experts and experts.kind != "experts":
        rule = f"transformers' {kind} stacks its experts in one matrix and runs them in a loop"
        yield from edit.refused(spec, "parallel.expert adapter.name" if spec.adapter.bits else "parallel.expert", rule)
    if experts and experts.every and spec.parallel.expert > 1:
        rule = f"each expert of transformers' {spec.model.model_type} computes every token, so that none is dispatched"
        yield ConfigError("parallel.expert", spec.parallel.expert, rule, ["parallel.expert=1"])


def _why(model: ModelSpec, axis: str) -> str:
    if axis == "pipeline":
        return "its class expects more than hidden states from every layer"
    if layers.packages(model):
        return "a mixer's scan runs over a whole sequence, and ranks do not pass each other its state"
    return "launch's parallel attention replaces only that of family=llama, gpt and similar ones"


def attention(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of an attention implementation that the class does not support."""
    model = spec.model
    legal = values.decoder(model).attentions
    if model.attention not in legal:
        rule = f"transformers' {model.model_type} computes it with {' or '.join(legal)}"
        yield ConfigError("model.attention", model.attention, rule, [f"model.attention={each}" for each in legal])


def tied(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of tied embeddings in a class that never ties them, and of untied ones in a class that shares blocks."""
    model, path = spec.model, "model.tie_word_embeddings"
    if model.tie_word_embeddings and values.decoder(model).fixed.get("tie_word_embeddings") is False:
        rule = f"transformers' {model.model_type} has two tensors, whatever its configuration says"
        yield ConfigError(path, True, rule, [f"{path}=false"])
    if values.decoder(model).shared and not model.tie_word_embeddings:
        yield ConfigError(path, False, TIED_BLOCKS, [f"{path}=true"])
    adapted = values.value(model, "use_shared_attention_adapter") is True
    if adapted and model.key_value_heads != model.num_attention_heads:
        path, count = "model.num_key_value_heads", model.num_attention_heads
        rule = "use_shared_attention_adapter adds to the keys a tensor as wide as all queries"
        yield ConfigError(path, model.key_value_heads, rule, [f"{path}={count}"])


def _extra(model: ModelSpec) -> Iterator[ConfigError]:
    found, said = values.decoder(model), values.spoken_for(model)
    known = values.defaults(model.model_type)
    sizes = {key for key in found.sizes.values() if isinstance(known.get(str(key)), int)}
    for key, given in model.extra.items():
        path = f"model.extra.{key}"
        example = _EXAMPLES.get(key) if known.get(key) is None else known[key]
        if key in said and said[key] != "hidden_act":
            way = edit.override(f"model.{said[key]}", given)
            yield ConfigError(path, given, f"launch has it as model.{said[key]}", [way])
        elif key not in known and key not in older(str(model.model_type)):
            near = closest(key, list(known))[:2]
            rule = f"transformers' {found.config} has no such key"
            yield ConfigError(path, given, rule, [f"model.extra.{each}=..." for each in near])
        elif key in said and given not in NAMED:
            rule = "transformers has no such activation"
            yield ConfigError(path, given, rule, [f"{path}=gelu", f"{path}=silu"])
        elif key in _LAYERS and given is not None and found.layers is None:
            yield from _layers(model, key, given)
        elif not _fits(given, example) or (key in sizes and not given and example):
            rule = f"transformers expects {_kind(example)}"
            yield ConfigError(path, given, rule, [edit.override(path, known.get(key))])
    for key, legal in found.legal.items():
        given = model.extra.get(key, known.get(key))
        if key in known and given not in legal and key not in said:
            rule = f"launch supports only {' or '.join(map(str, legal))} for transformers' {model.model_type}"
            yield ConfigError(f"model.extra.{key}", given, rule, ["script=path/to/train.py"])


def _layers(model: ModelSpec, key: str, given: object) -> Iterator[ConfigError]:
    """Errors of a list that does not have one known name per layer."""
    path, count, words = f"model.extra.{key}", model.num_hidden_layers, _LAYERS[key]
    named = list(given) if isinstance(given, list | tuple) else []
    if not named or any(word not in words for word in named):
        yield ConfigError(path, given, f"it names each layer {' or '.join(words)}", [f"{path}=null"])
    elif len(named) != count:
        rule = f"it names {len(named)} layers, and the model has {count} (model.num_hidden_layers)"
        ways = [edit.override(path, named[:count])] if len(named) > count else [f"{path}=null"]
        yield ConfigError(path, given, rule, [*ways, f"model.num_hidden_layers={len(named)}"])


def _kinds(model: ModelSpec) -> Iterator[ConfigError]:
    """Errors of the kinds of layers: unknown names, or another number of names than layers."""
    found, named = values.decoder(model), layers.words(model)
    if found.layers is None:
        return
    path = next((f"model.extra.{key}" for key in _PATTERNS if model.extra.get(key) is not None), "model.model_type")
    value = model.extra.get(path.rpartition(".")[2], model.model_type)
    if not named:
        rule = f"transformers' {model.model_type} cannot tell its layers' kinds: a value has the wrong type"
        yield ConfigError("model.extra", dict(model.extra), rule, ["model.extra={}"])
    elif unknown := [word for word in dict.fromkeys(named) if word not in found.steps]:
        rule = f"a layer of a {model.model_type} is {' or '.join(found.steps)}, not {unknown[0]}"
        yield ConfigError(path, value, rule, [f"{path}=null"])
    elif len(named) != model.num_hidden_layers:
        rule = f"it names {len(named)} layers, and the model has {model.num_hidden_layers} (model.num_hidden_layers)"
        yield ConfigError(path, value, rule, [f"model.num_hidden_layers={len(named)}"])


def _fits(given: object, default: object) -> bool:
    """True if a value has the type of the class's default, or the default shows none."""
    if given is None or default is None:
        return True
    if isinstance(default, list | Mapping):
        return isinstance(given, list | tuple if isinstance(default, list) else Mapping)
    if default == "auto":
        return given == default or (type(given) is int and given > 0)
    if isinstance(default, bool) or isinstance(given, bool):
        return type(given) is type(default)
    if isinstance(default, int):  # A count.
        return type(given) is int and given >= 0
    return isinstance(given, int | float) if isinstance(default, float) else type(given) is type(default)


def _kind(default: object) -> str:
    words = {
        bool: "true or false",
        int: "an integer of at least 1",
        float: "a number",
        list: "a list",
        dict: "a mapping",
    }
    return "auto or an integer of at least 1" if default == "auto" else words.get(type(default), "a word")


def _facts(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of keys of ``model`` that the class fixes, or takes from its own configuration."""
    model = spec.model
    for key, wanted in facts(model).items():
        path = f"model.{key}"
        if (found := edit.value_at(spec, path)) == wanted:
            continue
        if key == "rope_theta" and model.model_type in _ROTARY:
            rule = f"transformers' {model.model_type} takes it from its own configuration"
            yield ConfigError(path, found, rule, [_base(str(model.model_type), found)])
        elif key in _NEUTRAL and key in values.defaults(model.model_type):
            rule = f"transformers' {model.model_type} takes it from its own configuration"
            yield ConfigError(path, found, rule, [edit.override(f"+model.extra.{key}", found)])
        else:
            rule = f"transformers' {model.model_type} has {edit.override(key, wanted).partition('=')[2]}"
            yield ConfigError(path, found, rule, [edit.override(path, wanted)])


def _base(model_type: str, base: object) -> str:
    if "rope_theta" in older(model_type):
        return edit.override("+model.extra.rope_theta", base)
    return f"+model.extra.rope_parameters={{rope_type:default,rope_theta:{base}}}"


def facts(model: ModelSpec) -> dict[str, object]:
    """The keys of ``model`` that the class fixes, and their values."""
    found, kind = values.decoder(model), model.model_type
    wanted: dict[str, object] = dict(_NEUTRAL)
    wanted["normalization"] = found.norm
    wanted["position_embedding"] = found.fixed.get("position_embedding", "rope")
    wanted["attention_bias"] = values.flag(model, found.input_bias)
    wanted["mlp_bias"] = values.flag(model, found.mlp_bias)
    wanted["qk_norm"] = values.norms_of_heads(model, found)
    if (heads := found.fixed.get("num_key_value_heads")) == 1:
        wanted["num_key_value_heads"] = 1
    elif "num_key_value_heads" in found.fixed and model.key_value_heads != model.num_attention_heads:
        wanted["num_key_value_heads"] = heads
    if "hidden_act" in found.fixed:
        wanted["hidden_act"] = found.fixed["hidden_act"]
    width = found.joined * model.hidden_size
    if (found.square_output or values.their_key(kind, "head_dim") is None) and model.query_size != width:
        wanted["head_dim"] = None if found.joined == 1 else width // model.num_attention_heads
    if values.their_key(kind, "intermediate_size") is None:
        wanted["intermediate_size"] = found.inner_factor * model.hidden_size
    if values.their_key(kind, "norm_epsilon") is None:
        wanted["norm_epsilon"] = _EPSILON
    if not found.dropouts:
        wanted["dropout"] = 0.0
    if found.experts is None:
        wanted |= {"num_experts": 0, "moe_intermediate_size": 0}
    elif values.their_key(kind, "moe_intermediate_size") is None:
        wanted["moe_intermediate_size"] = model.intermediate_size
    return wanted
