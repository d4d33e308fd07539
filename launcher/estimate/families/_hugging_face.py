"""The ``transformers`` classes of Llama and its relatives: their arguments, their limits, and reading ``config.json``.

The names of keys, and the defaults of those that a ``config.json`` leaves out, are those of
``configuration_<model_type>.py`` in transformers 5.23.
"""

from collections.abc import Iterator, Mapping

from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.estimate.rank.family import CheckpointNames, ConfigFile, TransformersConfig
from launcher.spec import ModelSpec, RunSpec, edit

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

EXPERTS = "the experts, whose weights are one three-dimensional tensor"

LEGAL: Mapping[str, tuple[object, ...]] = {
    "gated": (True,), "normalization": ("rmsnorm",), "position_embedding": ("rope",), "dropout": (0.0,),
}  # fmt: skip
"""Values that every model type here supports."""

_LEGAL: Mapping[str, tuple[object, ...]] = {
    **LEGAL, **dict.fromkeys(("kv_lora_rank", "num_experts", "num_shared_experts", "first_dense_layers"), (0,)),
}  # fmt: skip
"""Values of LlamaForCausalLM, Qwen2ForCausalLM (biases only of queries, keys and values) and Qwen3ForCausalLM."""

_SAME = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings", "initializer_range", "tie_word_embeddings",
)  # fmt: skip
"""Our keys that have the same names in these classes."""

ACTIVATIONS = {"squared_relu": "relu2"}
"""The names in transformers of our activation functions, where they differ."""


def common(model: ModelSpec) -> JsonObject:
    """Arguments that all of these classes take."""
    return {
        **{key: getattr(model, key) for key in _SAME},
        "num_key_value_heads": model.key_value_heads,
        "head_dim": model.head_size,
        "hidden_act": ACTIVATIONS.get(model.hidden_act, model.hidden_act),
        "rms_norm_eps": model.norm_epsilon,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta, **(model.rope_parameters or {})},
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def balanced_experts(model: ModelSpec) -> JsonObject:
    """Arguments of experts that are scored by a sigmoid and balanced by biases (DeepSeek-V3, GLM-4.5)."""
    return {
        "moe_intermediate_size": model.moe_intermediate_size,
        "n_routed_experts": model.num_experts,
        "n_shared_experts": model.num_shared_experts,
        "num_experts_per_tok": model.num_experts_per_tok,
        "first_k_dense_replace": model.first_dense_layers,
        "norm_topk_prob": model.norm_topk_prob is not False,
        "routed_scaling_factor": model.routed_scaling_factor,
        "n_group": model.n_group or 1,
        "topk_group": model.topk_group or 1,
    }


def other_router(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of a model without routed or without shared experts, which these classes always have."""
    yield from auxiliary_loss(spec)
    model = spec.model
    if not model.num_experts:
        rule = "these models have routed experts: this is their number"
        yield ConfigError("model.num_experts", 0, rule, ["model.num_experts=8"])
    if not model.num_shared_experts:
        rule = "transformers' classes of this family have a shared expert, which every token passes"
        yield ConfigError("model.num_shared_experts", 0, rule, ["model.num_shared_experts=1"])


def auxiliary_loss(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of a loss that balances experts, which the worker does not add to the cross entropy."""
    path, coefficient = "model.router_aux_loss_coef", spec.model.router_aux_loss_coef
    if coefficient:
        rule = "the worker's loss is only the cross entropy, and with 0.0 nothing balances the experts"
        yield ConfigError(path, coefficient, rule, ["parallel=ep", f"{path}=0.0"])


def transformers_config(model: ModelSpec) -> TransformersConfig:
    """Llama, or Qwen2 or Qwen3, which differ in one feature."""
    settings, output = common(model), model.attention_output_bias is True
    if model.qk_norm:
        return TransformersConfig(name="Qwen3Config", settings={**settings, "attention_bias": model.attention_bias})
    if model.attention_bias and not output:
        return TransformersConfig(name="Qwen2Config", settings=settings)
    biases = {"attention_bias": model.attention_bias, "mlp_bias": model.mlp_bias}
    return TransformersConfig(name="LlamaConfig", settings=settings | biases)


def partial_rotation(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of partial rotation, which these classes do not support: they rotate whole heads."""
    part = (spec.model.rope_parameters or {}).get("partial_rotary_factor")
    if part not in (None, 1):
        rule = "transformers' class rotates whole heads"
        yield ConfigError("model.rope_parameters.partial_rotary_factor", part, rule, ["parallel=tp"])


def not_computed(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of values that these classes do not support, and of biases and norms that no single class combines."""
    yield from partial_rotation(spec)
    yield from other_values(spec, _LEGAL)
    yield from other_biases(spec)
    yield from short_window(spec)
    model = spec.model
    plain = not model.qk_norm and (not model.attention_bias or model.attention_output_bias is True)
    if model.mlp_bias and not plain:
        has = "norms of heads (model.qk_norm)" if model.qk_norm else "biases of only queries, keys and values"
        rule = f"no class of transformers combines biases of the MLP with {has}"
        yield ConfigError("model.mlp_bias", True, rule, ["script=path/to/train.py"])
    heads, hidden = model.num_attention_heads, model.hidden_size
    if plain and model.head_dim is not None and hidden % heads:  # validate_architecture of LlamaConfig.
        rule = f"transformers' Llama requires a multiple of its {heads} attention heads, whatever the head size"
        ways = [edit.override("model.hidden_size", size) for size in edit.multiples_around(hidden, heads, 1)]
        yield ConfigError("model.hidden_size", hidden, rule, ways)


def other_biases(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of a bias on the output projection only, or norms of heads with only some of attention's biases."""
    model, path = spec.model, "model.attention_output_bias"
    output = model.attention_output_bias is True
    if output and not model.attention_bias:
        rule = "no class of transformers has it without biases of queries, keys and values"
        yield ConfigError(path, True, rule, [f"{path}=false", "model.attention_bias=true"])
    elif model.qk_norm and model.attention_bias and not output:
        rule = "transformers' classes with norms of heads (model.qk_norm) have all biases of attention or none"
        yield ConfigError(path, model.attention_output_bias, rule, [f"{path}=true", "model.attention_bias=false"])


def short_window(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of sequences longer than a sliding window: the worker's attention sees all earlier tokens."""
    window, length = spec.model.sliding_window, spec.sequence_length
    if window is not None and length > window:
        rule = (
            f"a token attends to {window} tokens (model.sliding_window), but in the worker to all earlier tokens: null"
            " trains a different model than the one described"
        )
        ways = [edit.override("train.sequence_length", window), "model.sliding_window=null"]
        yield ConfigError("train.sequence_length", length, rule, ways)


def other_values(spec: RunSpec, legal: Mapping[str, tuple[object, ...]]) -> Iterator[ConfigError]:
    """Errors of keys of the model whose values its classes do not support."""
    for key, values in legal.items():
        path = f"model.{key}"
        if (value := getattr(spec.model, key)) not in values:
            way_out = [edit.override(path, item) for item in values]
            names = " or ".join(way.partition("=")[2] for way in way_out)
            whose = f"transformers' {spec.model.family} models"
            yield ConfigError(path, value, f"{whose} have {names}", way_out)


def read_config(config: ConfigFile) -> JsonObject:
    """Llama, Mistral, Qwen2 and Qwen3, and the keys that their relatives with experts share."""
    heads = config.size("num_attention_heads")
    activation = config.activation("hidden_act")
    model = {
        "family": "llama",
        "num_hidden_layers": config.size("num_hidden_layers"),
        "hidden_size": config.size("hidden_size"),
        "intermediate_size": config.size("intermediate_size"),
        "num_attention_heads": heads,
        "num_key_value_heads": _key_value_heads(config, heads),
        "head_dim": None if config.get("head_dim") is None else config.size("head_dim"),
        "vocab_size": config.size("vocab_size"),
        "tie_word_embeddings": config.flag("tie_word_embeddings", False),
        "hidden_act": activation,
        "normalization": "rmsnorm",
        "position_embedding": "rope",
        **config.rotary(),
        "norm_epsilon": config.number("rms_norm_eps", 1e-6),
        **_attention_biases(config),
        "mlp_bias": _has(config, "mlp_bias"),
        "qk_norm": config.model_type in ("qwen3", "qwen3_moe"),
        "max_position_embeddings": config.size("max_position_embeddings"),
        "dropout": 0.0,
        "initializer_range": config.number("initializer_range", 0.02),
    }
    model |= _window(config, model["num_hidden_layers"], model["max_position_embeddings"])
    config.default("head_dim")
    if activation != "silu":
        model["gated"] = True
        config.say("hidden_act", "hidden_act", "gated")
    if config.has("head_dim"):
        config.say("head_dim", "head_dim")
    return model


def _key_value_heads(config: ConfigFile, heads: int) -> int:
    """The number of key and value heads, as set or by the class's default: null is one per attention head."""
    return (
        config.size("num_key_value_heads", heads or 1, null=heads or 1)
        if config.has("num_key_value_heads")
        else (config.get("num_key_value_heads") or heads)
    )


def _has(config: ConfigFile, key: str) -> bool:
    """The bias of the MLP, which the classes of Llama, similar models and DeepSeek-V2 read, and others do not."""
    if config.model_type in ("llama", "deepseek_v2", "internlm3", "iquestcoder"):
        return config.flag(key, False)
    if config.has(key):
        config.leave(key, f"no effect: transformers' class of {config.model_type} does not read it", matters=False)
    return False


def _attention_biases(config: ConfigFile) -> dict[str, bool]:
    """Attention's biases: Qwen2 always has them on queries, keys and values, Mistral and Mixtral never; others as set.

    GLM-4 has them only on queries, keys and values, the others also on the output projection.
    """
    kind, key = config.model_type, "attention_bias"
    if kind in ("qwen2", "mistral", "mixtral"):
        config.leave(key, f"no effect: transformers' class of {kind} does not read it", matters=False)
        return {key: kind == "qwen2"}
    bias = config.flag(key, False)
    if bias and kind != "glm4_moe":
        config.say(key, key, "attention_output_bias")
        return {key: True, "attention_output_bias": True}
    return {key: bias}


def _window(config: ConfigFile, layers: int, length: int) -> dict[str, int]:
    """A sliding window shorter than the longest sequence; Mistral's class has one by default."""
    key, kind = "sliding_window", config.model_type
    window = config.get(key)
    used = config.get("use_sliding_window") is True if kind.startswith("qwen") else kind in ("mistral", "mixtral")
    if isinstance(window, bool) or not isinstance(window, int | None):
        config.error(key, "is a number of tokens, or null")
    elif not used or window is None:
        config.leave(key, "no effect: no layer has a sliding window", matters=False)
    elif window >= length:
        config.leave(key, "no effect: no sequence is longer (max_position_embeddings)", matters=False)
        config.leave("use_sliding_window", "no effect: no sequence is longer than the window", matters=False)
        if _kinds_of_layers(config):
            config.leave("layer_types", "no effect: no sequence is longer than the window", matters=False)
    elif (without := _without_window(config)) < layers:
        return _windowed(config, window, without)
    else:
        says = "layer_types" if _kinds_of_layers(config) else "max_window_layers"
        config.leave(key, f"no effect: {says} gives no layer a window", matters=False)
        config.leave("use_sliding_window", f"no effect: {says} gives no layer a window", matters=False)
    return {}


def _windowed(config: ConfigFile, window: int, without: int) -> dict[str, int]:
    """A window in all layers; the file's other keys, by which some layers have none, are left out."""
    config.say("sliding_window", "sliding_window")
    config.say("use_sliding_window", "sliding_window")
    if _kinds_of_layers(config):
        config.leave("max_window_layers", "no effect: layer_types decides", matters=False)
        if without:
            config.leave("layer_types", "the layers without a window use the window here as well")
        else:
            config.default("layer_types")
    elif without:
        config.leave("max_window_layers", "the first layers use the window here as well")
    return {"sliding_window": window}


def _without_window(config: ConfigFile) -> int:
    """Number of layers without a window in Qwen2 and Qwen3: those in their list, else the first ones."""
    if kinds := _kinds_of_layers(config):
        return sum(kind != "sliding_attention" for kind in kinds)
    first = config.get("max_window_layers", 0) if config.model_type in ("qwen2", "qwen3") else 0
    return first if isinstance(first, int) else 0


def _kinds_of_layers(config: ConfigFile) -> list[object]:
    """The list of layer kinds that the classes of Qwen2 and Qwen3 use instead of ``max_window_layers``."""
    kinds = config.get("layer_types") if config.model_type in ("qwen2", "qwen3") else None
    return kinds if isinstance(kinds, list) else []
