"""Mixture of experts on Llama's attention (Mixtral, Qwen-MoE): routed experts, shared experts, first dense layers."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from math import ceil

from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.estimate.families import _hugging_face, _megatron, _transformers, _weights, llama
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.family import ConfigFile, TransformersConfig
from launcher.estimate.rank.tensors import SavedTensor, Weight
from launcher.spec import ModelSpec, RunSpec

traits = replace(
    llama.traits,
    adapter_targets=("q_proj", "k_proj", "v_proj", "o_proj"),
    experts=True,
    counts=("shared_width",),
    not_linear=_hugging_face.EXPERTS,
    kernels=(),
    model_types=("mixtral", "qwen3_moe"),
    narrow_routing=lambda model: model.qk_norm,
)

embedding = llama.embedding
head = llama.head
after_blocks = llama.after_blocks
first_norm_backward = llama.first_norm_backward
saves_input = llama.saves_input

_LEGAL: Mapping[str, tuple[object, ...]] = {
    **_hugging_face.LEGAL,
    "mlp_bias": (False,),
    "kv_lora_rank": (0,),
    "num_shared_experts": (0,),
    "routed_scaling_factor": (1.0,),
    "n_group": (0,),
    "topk_group": (0,),
}
"""Values that MixtralForCausalLM and Qwen3MoeForCausalLM support."""

_MIXTRAL: Mapping[str, tuple[object, ...]] = {
    "attention_bias": (False,),
    "first_dense_layers": (0,),
    "norm_topk_prob": (None, True),
}
"""Values that MixtralForCausalLM supports, the class of a model without norms of heads."""


def block(model: ModelSpec, layer: int) -> list[Weight]:
    """Weights of a Llama block, with experts in place of the MLP after the first dense layers."""
    return _weights.between_norms(model, _weights.grouped_attention(model), behind(model, layer))


def behind(model: ModelSpec, layer: int) -> list[Weight]:
    """Weights of the part after attention: the MLP in the first layers, else experts."""
    if kind(model, layer) == "dense":
        return _weights.feed_forward("mlp", model, model.intermediate_size)
    return _weights.experts(model)


def kind(model: ModelSpec, layer: int) -> str:
    """``dense`` for the first layers, ``moe`` for the rest."""
    return "dense" if layer < model.first_dense_layers or not model.num_experts else "moe"


def saved(model: ModelSpec, layer: int, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by a Llama block, with experts in place of the MLP after the first dense layers."""
    return llama.attention(model, engine) + saved_behind(model, layer, engine)


def backward_extra(model: ModelSpec, layer: int, engine: EngineTraits) -> list[SavedTensor]:
    """Gradients inside the MLP, or inside a token's experts, all at once or one after the other.

    Grouped products run in the weights' own format, also under autocast (``_transformers.routed``). Shared experts come
    last in a forward pass: backward frees all that they saved before the routed experts begin.
    """
    if kind(model, layer) == "dense":
        return llama.mlp_gradients(model, engine, model.intermediate_size)
    if engine.library == "transformers":
        if not engine.grouped_experts:
            one = ceil(Fraction(model.moe_intermediate_size * model.num_experts_per_tok, model.num_experts))
            return llama.mlp_gradients(model, engine, max(one, model.shared_width))
        return _grouped_gradients(model, engine)
    width = model.moe_intermediate_size * model.num_experts_per_tok + model.shared_width
    return llama.mlp_gradients(model, engine, width)


def _grouped_gradients(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    wide, shared = replace(engine, size=engine.residual_size), model.shared_width
    saved = _transformers.feed_forward(model, engine, shared) if shared else []
    freed = max(sum(row.bytes for row in saved) - engine.size * model.hidden_size, 0)
    first, *others = llama.mlp_gradients(model, wide, model.moe_intermediate_size * model.num_experts_per_tok)
    least = llama.mlp_gradients(model, engine, shared)[0].bytes if shared else 0
    rows = [replace(first, bytes=max(first.bytes - freed, least)), *others]
    return _transformers.behind_exchange(model, rows, wide) if engine.shared_experts else rows


def saved_behind(
    model: ModelSpec, layer: int, engine: EngineTraits, *, router: _transformers.Router = "narrow"
) -> list[SavedTensor]:
    """Tensors saved by the norm after attention and the MLP, or by the routed and shared experts of a token."""
    if kind(model, layer) == "dense":
        return llama.feed_forward(model, engine)
    hidden, shared = model.hidden_size, model.shared_width
    if engine.library == "megatron":
        rows = (
            _megatron.norm(hidden, engine, moved=("mlp_norm", ""))
            + _megatron.routed(model, engine)
            + _megatron.dropout(model, engine)
        )
        return rows + (_megatron.shared_experts(model, engine, shared) if shared else [])
    # Bytes of an element of an expert's output times its weight: Qwen3-MoE's weights have the compute format.
    weighted = engine.residual_size if model.family == "moe" and model.qk_norm else 4
    rows = _transformers.routed(model, engine, router=router, weighted=weighted)
    rows += _transformers.feed_forward(model, engine, shared) if shared else []
    return _transformers.behind(_transformers.norm(hidden, model, engine, readers=("gate", "experts")), "experts", rows)


def transformers_config(model: ModelSpec) -> TransformersConfig | None:
    """Mixtral, or Qwen3-MoE with norms of heads."""
    settings = _hugging_face.common(model) | {"num_experts_per_tok": model.num_experts_per_tok, "sliding_window": None}
    if not model.qk_norm:
        sizes = {"intermediate_size": model.moe_intermediate_size, "num_local_experts": model.num_experts}
        return TransformersConfig(name="MixtralConfig", settings=settings | sizes)
    experts = {
        "num_experts": model.num_experts,
        "moe_intermediate_size": model.moe_intermediate_size,
        "norm_topk_prob": model.norm_topk_prob is not False,
        "mlp_only_layers": list(range(model.first_dense_layers)),
        "attention_bias": model.attention_bias,
    }
    return TransformersConfig(name="Qwen3MoeConfig", settings=settings | experts)


def not_computed(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of values that these classes do not support."""
    yield from _hugging_face.partial_rotation(spec)
    yield from _hugging_face.other_values(spec, _LEGAL if spec.model.qk_norm else {**_LEGAL, **_MIXTRAL})
    yield from _hugging_face.other_biases(spec)
    yield from _hugging_face.auxiliary_loss(spec)
    yield from _hugging_face.short_window(spec)
    if not spec.model.num_experts:
        rule = "the family moe has routed experts: this is their number"
        yield ConfigError("model.num_experts", 0, rule, ["model.num_experts=8"])


def read_config(config: ConfigFile) -> JsonObject:
    """Mixtral, whose MLPs are all experts, and Qwen3-MoE."""
    model = llama.read_config(config) | {"family": "moe", **auxiliary_loss(config)}
    if config.model_type == "mixtral":
        config.say("intermediate_size", "intermediate_size", "moe_intermediate_size")
        return model | {
            "num_experts": config.size("num_local_experts", 8, to="num_experts"),
            "num_experts_per_tok": config.size("num_experts_per_tok", 2),
            "moe_intermediate_size": model["intermediate_size"],
        }
    return model | {
        "num_experts": config.size(_first_of(config, "num_experts", "num_local_experts"), 128, to="num_experts"),
        "num_experts_per_tok": config.size("num_experts_per_tok", 8),
        "moe_intermediate_size": config.size("moe_intermediate_size", 768),
        "norm_topk_prob": config.flag("norm_topk_prob", False),
        "first_dense_layers": _first_dense_layers(config, model["num_hidden_layers"]),
    }


def balanced(config: ConfigFile) -> JsonObject:
    """The experts of DeepSeek-V3 and GLM-4.5: scored by a sigmoid, in groups, some of them shared."""
    experts = _first_of(config, "n_routed_experts", "num_local_experts")
    return {
        "num_experts": config.size(experts, 256, to="num_experts"),
        "num_experts_per_tok": config.size("num_experts_per_tok", 8, null=1),
        "moe_intermediate_size": config.size("moe_intermediate_size", 2048),
        "num_shared_experts": config.size("n_shared_experts", 1, null=0, to="num_shared_experts"),
        "first_dense_layers": config.size("first_k_dense_replace", 0, null=0, to="first_dense_layers"),
        "norm_topk_prob": config.flag("norm_topk_prob", True),
        "routed_scaling_factor": config.number("routed_scaling_factor", 1.0),
        "n_group": config.size("n_group", 1, null=1),
        "topk_group": config.size("topk_group", 1, null=1),
    }


def auxiliary_loss(config: ConfigFile) -> JsonObject:
    """The loss that balances experts, which transformers adds only if the router's logits are an output."""
    if config.get("output_router_logits") is not True:
        return {}
    config.say("output_router_logits", "router_aux_loss_coef")
    return {"router_aux_loss_coef": config.number("router_aux_loss_coef", 0.001)}


def _first_of(config: ConfigFile, key: str, other: str) -> str:
    """Return the name that a file uses for a key with two names in its class."""
    return key if config.has(key) or not config.has(other) else other


def _first_dense_layers(config: ConfigFile, layers: int) -> int:
    """Number of layers without experts, which must be the first ones (``Qwen3MoeDecoderLayer``)."""
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    if not isinstance(step, int) or isinstance(step, bool) or step < 1:
        config.error("decoder_sparse_step", "is an integer of at least 1")
        return 0
    if not isinstance(dense, list):
        config.error("mlp_only_layers", "is a list of layers")
        return 0
    without = [layer for layer in range(layers) if layer in dense or (layer + 1) % step]
    key = "decoder_sparse_step" if step > 1 else "mlp_only_layers"
    if without != list(range(len(without))):
        config.error(key, "only the first layers may be dense: launch builds no dense layers after those with experts")
    elif without and len(without) == layers:
        config.error(key, "leaves no layer with experts", 'write "model_type": "qwen3" into the file')
    config.say("mlp_only_layers", "first_dense_layers")
    config.say("decoder_sparse_step", "first_dense_layers")
    return len(without)
