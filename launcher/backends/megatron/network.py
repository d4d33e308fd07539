"""The model as Megatron-LM arguments (``megatron/training/arguments.py`` of megatron-core 0.19.2).

Every size is written out, even where it is Megatron-LM's default, so that the list alone defines the model. Some
arguments have no key of ours and follow from the model: the router's scores from the family, the fusion of rotary
positions from latent attention, the GELU kernel from the model's kind of GELU.
"""

from itertools import accumulate, pairwise

from launcher.backends.megatron.implementation import implementation
from launcher.backends.megatron.traits import VOCABULARY_MULTIPLE
from launcher.estimate import families
from launcher.estimate.families import hybrid
from launcher.estimate.rank.stages import chunk_sizes
from launcher.spec import ModelSpec, RunSpec

type Value = bool | int | float | str | tuple[str | int, ...] | None
type Arguments = dict[str, Value]
"""Arguments by their names without dashes: ``True`` is a switch, ``False`` and ``None`` are left out."""

_NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
_POSITIONS = {"rope": "rope", "learned": "learned_absolute", "none": "none"}
_ATTENTION = {"flash": "flash", "sdpa": "auto", "eager": "unfused"}


def arguments(spec: RunSpec) -> Arguments:
    """Arguments for the sizes and layer kinds of the model."""
    model = spec.model
    grouped = model.key_value_heads != model.num_attention_heads and not model.kv_lora_rank
    found: Arguments = {
        "num-layers": model.num_hidden_layers,
        "hidden-size": model.hidden_size,
        "ffn-hidden-size": model.intermediate_size,
        "num-attention-heads": model.num_attention_heads,
        "group-query-attention": grouped,
        "num-query-groups": model.key_value_heads if grouped else None,
        "kv-channels": model.head_dim,
        "seq-length": spec.sequence_length,
        "max-position-embeddings": model.max_position_embeddings,
        **_positions(model),
        "normalization": _NORMS[model.normalization],
        "norm-epsilon": model.norm_epsilon,
        "qk-layernorm": model.qk_norm or model.kv_lora_rank > 0,
        **_activation(model),
        "disable-bias-linear": not model.mlp_bias,
        "add-qkv-bias": model.attention_bias and not model.mlp_bias,
        "untie-embeddings-and-output-weights": not model.tie_word_embeddings,
        "attention-dropout": model.dropout,
        "hidden-dropout": model.dropout,
        "init-method-std": model.initializer_range,
        "mtp-num-layers": model.mtp_layers or None,
        "attention-backend": _ATTENTION[model.attention],
        "window-size": f"{model.sliding_window - 1},0" if model.sliding_window else None,
        "vocab-size": model.vocab_size,
        "make-vocab-size-divisible-by": VOCABULARY_MULTIPLE,
        **(_experts(spec) if model.num_experts else {}),
        **(_latent_attention(model) if model.kv_lora_rank else {}),
    }
    return found | _hybrid(spec) if families.of(model).traits.pattern else found


_STACK = "megatron.core.models.hybrid.hybrid_layer_specs"


def _hybrid(spec: RunSpec) -> Arguments:
    """Arguments for a hybrid: its layer letters, split where its chunks end, instead of layer counts.

    ``validate_args`` reads the counts and the chunks of interleaved stages from ``--hybrid-layer-pattern``.
    """
    model, extra = spec.model, spec.model.extra
    letters, ends = str(extra["pattern"]), (0, *accumulate(chunk_sizes(spec)))
    chunks = [letters[start:end] for start, end in pairwise(ends)]
    further = [str(extra["mtp"])] * model.mtp_layers if extra.get("mtp") else []
    sizes = {key.replace("_", "-"): extra[key] for key in hybrid.MIXER if extra.get(key) is not None}
    return {
        "num-layers": None,
        "mtp-num-layers": None,
        "hybrid-layer-pattern": "/".join(["|".join(chunks), *further]),
        "spec": (_STACK, "hybrid_stack_spec") if spec.backend.path else None,  # The default of 0.19.
        **sizes,
        "moe-shared-expert-intermediate-size": extra.get("shared_width"),
        "moe-latent-size": extra.get("latent"),
        "mtp-use-repeated-layer": bool(extra.get("mtp_shared")) and model.mtp_layers > 0,
    }


def _positions(model: ModelSpec) -> Arguments:
    found: Arguments = {"position-embedding-type": _POSITIONS[model.position_embedding]}
    if model.position_embedding == "rope":
        found["rotary-base"] = int(model.rope_theta)
        found |= _scaled_positions(model)
    return found


def _scaled_positions(model: ModelSpec) -> Arguments:
    """Arguments for Llama 3's scaling (``RotaryEmbedding._apply_scaling`` fixes the rest) or part of a head."""
    given = model.rope_parameters or {}
    return {
        "use-rope-scaling": given.get("rope_type") == "llama3",
        "rope-scaling-factor": given.get("factor") if given.get("rope_type") == "llama3" else None,
        "rotary-percent": given.get("partial_rotary_factor"),
    }


def _activation(model: ModelSpec) -> Arguments:
    """Arguments for the activation: the kernel fused with the bias computes GELU's tanh approximation, ``gelu_new``.

    (``core/fusions/fused_bias_gelu.py``.) Without it ``F.gelu`` is exact. Nothing reads ``--openai-gelu`` there.
    """
    if model.gated:
        return {"swiglu": True}
    return {"squared-relu": model.hidden_act == "squared_relu", "no-bias-gelu-fusion": model.hidden_act != "gelu_new"}


def _experts(spec: RunSpec) -> Arguments:
    """Experts after the first dense layers; the router computes in fp32, as the memory estimate assumes."""
    model = spec.model
    dense, sparse = model.first_dense_layers, model.num_hidden_layers - model.first_dense_layers
    return {
        "num-experts": model.num_experts,
        "moe-ffn-hidden-size": model.moe_intermediate_size,
        "moe-router-topk": model.num_experts_per_tok,
        "moe-shared-expert-intermediate-size": model.shared_width or None,
        "moe-layer-freq": f"([0]*{dense}+[1]*{sparse})" if dense else None,
        "moe-grouped-gemm": implementation(spec).grouped,
        "moe-token-dispatcher-type": "alltoall",
        "moe-router-dtype": "fp32",
        "moe-router-load-balancing-type": "aux_loss",
        "moe-aux-loss-coeff": model.router_aux_loss_coef,
        **_router(model),
    }


def _router(model: ModelSpec) -> Arguments:
    """Arguments for the router: DeepSeek-V3 scores with a sigmoid and balances with a bias per expert.

    That is arXiv:2412.19437, section 2.1.2. The others take a softmax over the chosen experts, whose weights then sum
    to one, or over all (``norm_topk_prob`` is false). Over a single chosen expert it has no gradient, so Megatron-LM
    requires the softmax over all (``core/transformer/transformer_config.py``).
    """
    chosen: Arguments = {
        "moe-router-topk-scaling-factor": model.routed_scaling_factor if model.routed_scaling_factor != 1 else None,
        "moe-router-num-groups": model.n_group if model.n_group > 1 else None,
        "moe-router-group-topk": model.topk_group if model.n_group > 1 else None,
    }
    if families.of(model).traits.balances_experts:
        return {**chosen, "moe-router-score-function": "sigmoid", "moe-router-enable-expert-bias": True}
    return {**chosen, "moe-router-pre-softmax": model.num_experts_per_tok == 1 or model.norm_topk_prob is False}


def _latent_attention(model: ModelSpec) -> Arguments:
    """Arguments for latent attention, whose rotary positions are fused only for YaRN (``MLATransformerConfig``)."""
    return {
        "multi-latent-attention": True,
        "q-lora-rank": model.q_lora_rank or None,
        "kv-lora-rank": model.kv_lora_rank,
        "qk-head-dim": model.qk_nope_head_dim,
        "qk-pos-emb-head-dim": model.qk_rope_head_dim,
        "v-head-dim": model.v_head_dim,
        "rope-type": "rope",
        "no-rope-fusion": True,
    }
