"""Which models the worker builds: those that a class of ``transformers`` computes exactly as specified.

The workers build their networks from ``transformers``' classes, whose maths is fixed: a Llama has no dropout, a GPT-2
has biases. A specification is more general, so each family's classes are listed with the values that they compute, and
any other is refused rather than trained as something else. :func:`computed` asks the same for other readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from launcher.errors import ConfigError
from launcher.spec import RunSpec, edit, nearest

_LLAMA: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "normalization": ("rmsnorm",),
    "position_embedding": ("rope",),
    "dropout": (0.0,),
    "kv_lora_rank": (0,),
    "num_shared_experts": (0,),
    "first_dense_layers": (0,),
}
"""LlamaForCausalLM, Qwen2ForCausalLM (with attention_bias), Qwen3ForCausalLM (with qk_norm), MixtralForCausalLM."""

_GPT: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("gelu_new", "gelu", "relu", "squared_relu"),
    "normalization": ("layernorm",),
    "position_embedding": ("learned",),
    "attention_bias": (True,),
    "mlp_bias": (True,),
    "qk_norm": (False,),
    "num_experts": (0,),
}
"""GPT2LMHeadModel."""

_FAMILIES = {"llama": _LLAMA, "moe": _LLAMA, "gpt": _GPT}

TARGETS = {
    "llama": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "moe": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "gpt": ("c_attn", "c_proj", "c_fc"),
}
"""The linear layers of a block, which an adapter may target."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Models that no class computes, folders that cannot be read, adapters of layers that do not exist."""
    yield from _network(spec)
    if spec.model.family not in _FAMILIES:
        return
    yield from _folders(spec)
    if spec.adapter.name != "none":
        yield from _targets(spec)


def computed(spec: RunSpec) -> bool:
    """True if a class of ``transformers`` computes the model."""
    return next(_network(spec), None) is None


def shared_latents(spec: RunSpec, path: str) -> Iterator[ConfigError]:
    """A script's latent attention whose sequences ranks share; the worker's own check refuses that model anyway."""
    degree = edit.value_at(spec, path)
    if spec.script is not None and spec.model.kv_lora_rank and degree != 1:
        rule = (
            "the estimate does not know what multi-head latent attention (model.kv_lora_rank) keeps where ranks share"
            " a sequence"
        )
        yield ConfigError(path, degree, rule, [edit.override(path, 1), "parallel=cp"])


def _network(spec: RunSpec) -> Iterator[ConfigError]:
    model = spec.model
    if model.family not in _FAMILIES:
        rule = f"backend={spec.backend.name} builds the families {', '.join(_FAMILIES)} in this version"
        yield ConfigError("model.family", model.family, rule, ["parallel=ep", "model=mixtral_8x7b"])
        return
    yield from _values(spec, _FAMILIES[model.family], f"transformers' {model.family} models")
    yield from _gpt(spec) if model.family == "gpt" else _llama(spec)


def _values(spec: RunSpec, legal: Mapping[str, tuple[object, ...]], whose: str) -> Iterator[ConfigError]:
    for key, values in legal.items():
        path = f"model.{key}"
        if (value := edit.value_at(spec, path)) not in values:
            way_out = [edit.override(path, item) for item in values]
            names = " or ".join(way.partition("=")[2] for way in way_out)
            yield ConfigError(path, value, f"{whose} have {names}", way_out)


def _llama(spec: RunSpec) -> Iterator[ConfigError]:
    """Biases and norms that exist, but not in one class."""
    model = spec.model
    special = [key for key in ("qk_norm", "attention_bias", "mlp_bias") if getattr(model, key)]
    if model.num_experts:
        special.append("num_experts")
    if len(special) > 1:
        key = f"model.{special[0]}"
        rule = f"no class of transformers has both it and model.{special[1]}"
        yield ConfigError(key, True, rule, [f"{key}=false"])


def _gpt(spec: RunSpec) -> Iterator[ConfigError]:
    model = spec.model
    if model.key_value_heads != model.num_attention_heads:
        rule = "GPT-2 has a key and value head for every attention head"
        yield ConfigError(
            "model.num_key_value_heads", model.num_key_value_heads, rule, ["model.num_key_value_heads=null"]
        )
    if model.query_size != model.hidden_size:
        rule = f"GPT-2's heads share out the hidden size {model.hidden_size}"
        yield ConfigError("model.head_dim", model.head_dim, rule, ["model.head_dim=null"])


def _folders(spec: RunSpec) -> Iterator[ConfigError]:
    model = spec.model
    if model.trust_remote_code:
        rule = "this version runs no code that comes with weights or a tokenizer"
        yield ConfigError("model.trust_remote_code", True, rule, ["model.trust_remote_code=false"])
    if model.num_experts and model.weights is not None:
        rule = "weights of experts are stored one by one and held together; this version cannot join them while reading"
        yield ConfigError("model.weights", model.weights, rule, ["model.weights=null"])


def _targets(spec: RunSpec) -> Iterator[ConfigError]:
    known = TARGETS[spec.model.family]
    unknown = [target for target in spec.adapter.targets if target not in known]
    if unknown:
        rule = f"the linear layers of this model are {', '.join(known)}; {', '.join(unknown)} are not among them"
        way_out = [edit.override("adapter.targets", known)]
        yield ConfigError("adapter.targets", list(spec.adapter.targets), rule, way_out)


def tensor_degrees(spec: RunSpec) -> Iterator[str]:
    """Ways out to tensor parallel degrees that divide the world and the key and value heads, which are not copied."""
    degrees = nearest.divisors(spec.model.key_value_heads)
    return nearest.nearest(spec, "parallel.tensor", degrees, lambda run: run.gpus % run.model_parallel == 0, limit=2)
