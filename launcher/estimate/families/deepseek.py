"""DeepSeek-V3, Kimi K2 and GLM-4.7-Flash: latent attention, routed and shared experts (arXiv:2412.19437)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.estimate.families import _hugging_face, _megatron, _transformers, _weights, glm, llama, moe
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.family import ConfigFile, TransformersConfig
from launcher.estimate.rank.tensors import SavedTensor, Weight
from launcher.spec import ModelSpec, RunSpec

traits = replace(
    glm.traits,
    adapter_targets=("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"),
    latent_attention=True,
    model_types=("deepseek_v3", "glm4_moe_lite", "kimi_k2"),
)

_SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")

LEGAL: Mapping[str, tuple[object, ...]] = {
    **_hugging_face.LEGAL,
    "mlp_bias": (False,),
    "qk_norm": (False,),
    "sliding_window": (None,),
}
"""Values that DeepseekV3ForCausalLM supports."""

embedding = llama.embedding
head = llama.head
after_blocks = llama.after_blocks
first_norm_backward = llama.first_norm_backward
saves_input = llama.saves_input
kind = moe.kind
backward_extra = moe.backward_extra


def block(model: ModelSpec, layer: int) -> list[Weight]:
    """Weights of two norms, latent attention and experts, or in the first layers the MLP."""
    return _weights.between_norms(model, latent_attention(model), moe.behind(model, layer))


def saved(model: ModelSpec, layer: int, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by two norms, latent attention and experts, or in the first layers the MLP."""
    return layer_saved(model, layer, engine, router="sigmoid")


def layer_saved(
    model: ModelSpec, layer: int, engine: EngineTraits, *, router: _transformers.Router
) -> list[SavedTensor]:
    """The same for a router of either kind."""
    if engine.library == "megatron":
        # One linear layer reads the norm's output for the queries or their latent, another for keys and values.
        rows = _megatron.norm(model.hidden_size, engine, moved=("attn_norm", "qkv_linear"), linears=2)
        rows += _megatron.latent_attention(model, engine)
    else:
        readers = ("q_a_proj" if model.q_lora_rank else "q_proj", "kv_a_proj_with_mqa")
        rows = _transformers.norm(model.hidden_size, model, engine, readers=readers)
        rows = _transformers.behind(rows, "attention", _transformers.latent_attention(model, engine))
    return rows + moe.saved_behind(model, layer, engine, router=router)


def latent_attention(model: ModelSpec) -> list[Weight]:
    """Down-projections to the latents (whole on every rank), their norms, up-projections by head, output projection."""
    hidden, heads, bias = model.hidden_size, model.num_attention_heads, model.attention_bias
    query = heads * (model.qk_nope_head_dim + model.qk_rope_head_dim)
    if model.q_lora_rank:
        weights = _weights.linear("self_attn.q_a_proj", model.q_lora_rank, hidden, bias=bias, split=False)
        weights.append(Weight(name="self_attn.q_a_layernorm.weight", shape=(model.q_lora_rank,)))
        weights += _weights.linear("self_attn.q_b_proj", query, model.q_lora_rank, bias=False)
    else:
        weights = _weights.linear("self_attn.q_proj", query, hidden, bias=False)
    latent = model.kv_lora_rank + model.qk_rope_head_dim
    up = heads * (model.qk_nope_head_dim + model.v_head_dim)
    weights += _weights.linear("self_attn.kv_a_proj_with_mqa", latent, hidden, bias=bias, split=False)
    weights.append(Weight(name="self_attn.kv_a_layernorm.weight", shape=(model.kv_lora_rank,)))
    weights += _weights.linear("self_attn.kv_b_proj", up, model.kv_lora_rank, bias=False)
    output = model.attention_output_bias is True
    return weights + _weights.linear("self_attn.o_proj", hidden, heads * model.v_head_dim, bias=output, rows=False)


def transformers_config(model: ModelSpec) -> TransformersConfig | None:
    """DeepSeek-V3."""
    return TransformersConfig(name="DeepseekV3Config", settings=arguments(model))


def arguments(model: ModelSpec) -> JsonObject:
    """Arguments that all classes with latent attention take."""
    settings = {
        **_hugging_face.common(model),
        **_hugging_face.balanced_experts(model),
        "q_lora_rank": model.q_lora_rank or None,
        **{key: getattr(model, key) for key in (*_SIZES, "attention_bias")},
    }
    del settings["head_dim"]
    return settings


def not_computed(spec: RunSpec, legal: Mapping[str, tuple[object, ...]] = LEGAL) -> Iterator[ConfigError]:
    """Errors of values that DeepseekV3ForCausalLM does not support."""
    yield from _hugging_face.partial_rotation(spec)
    yield from _hugging_face.other_values(spec, legal)
    yield from _hugging_face.other_router(spec)
    model = spec.model
    if not model.kv_lora_rank:
        rule = f"the family {model.family} has multi-head latent attention, and this is the latent's size"
        yield ConfigError("model.kv_lora_rank", 0, rule, ["model.kv_lora_rank=512"])
    if (model.attention_output_bias is True) != model.attention_bias:
        rule = "transformers' classes with latent attention have all biases of attention or none"
        path = "model.attention_output_bias"
        yield ConfigError(path, model.attention_output_bias, rule, [f"{path}={str(model.attention_bias).lower()}"])


def read_config(config: ConfigFile) -> JsonObject:
    """DeepSeek-V3, and models whose classes compute the same way."""
    model = latent(config) | moe.balanced(config)
    # ``Glm4MoeLiteConfig`` lists which layers have an MLP.
    return model | (first_dense(config, 1) if config.model_type == "glm4_moe_lite" else {})


def first_dense(config: ConfigFile, default: int) -> dict[str, int]:
    """Number of layers with a plain MLP, the ``dense`` ones of ``mlp_layer_types``, which must be the first ones."""
    kinds = config.get("mlp_layer_types")
    if kinds is None:
        return {"first_dense_layers": default}
    config.say("mlp_layer_types", "first_dense_layers")
    if not isinstance(kinds, list) or not {*kinds} <= {"dense", "sparse"}:
        config.error("mlp_layer_types", "is a list that names each layer dense or sparse")
        return {}
    count = kinds.index("sparse") if "sparse" in kinds else len(kinds)
    if "dense" in kinds[count:]:
        config.error("mlp_layer_types", "launch builds no dense layers after those with experts")
    return {"first_dense_layers": count}


def latent(config: ConfigFile) -> JsonObject:
    """All keys of a model with latent attention except its experts'."""
    model = llama.read_config(config)
    for key in ("num_key_value_heads", "head_dim"):
        config.leave(key, "no effect: every head has its own keys and values, made from the latent", matters=False)
    return model | {
        "family": "deepseek",
        "num_key_value_heads": None,
        "head_dim": None,
        "q_lora_rank": config.size("q_lora_rank", 1536, null=0),
        "kv_lora_rank": config.size("kv_lora_rank", 512),
        "qk_nope_head_dim": config.size("qk_nope_head_dim", 128),
        "qk_rope_head_dim": config.size("qk_rope_head_dim", 64),
        "v_head_dim": config.size("v_head_dim", 128),
    }
