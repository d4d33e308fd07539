"""Tensors that Megatron-core with Transformer Engine saves, in bytes per token.

arXiv:2205.05198 section 4 with today's kernels: fused attention keeps a log-sum-exp in place of scores; norms and
activations are one kernel each. Compared with the peaks that Megatron-LM's own functional tests record.
"""

from math import ceil

from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.tensors import Part, SavedTensor, Share
from launcher.spec import ModelSpec

_STATISTIC = 4  # Bytes of a log-sum-exp, an fp32 number.


_FUSED = ("qkv_linear", "qkv_linear")
"""The offloaded module of both tensors of the norm before attention, which is fused with the linear layer."""


def norm(
    size: int, engine: EngineTraits, part: Part = "norm", *, moved: tuple[str, str] = ("", ""), linears: int = 0
) -> list[SavedTensor]:
    """Input and output of a norm, the output being the input of the next linear layer.

    ``moved`` are the modules of ``--offload-modules`` that offload them. With low-precision products, each of
    ``linears`` linear layers keeps the output quantised, in place of the norm's output; 0 means other readers.
    """
    kept = engine.size * size
    if linears and engine.quantised is not None:
        kept = linears * read_by_linear(engine, size)
    return [
        _saved("norm input", engine.size * size, "residual", "input", moved[0]),
        _saved("norm output", kept, "residual", part, moved[1]),
        *([_saved("normalised values", engine.unfused_norm * size, "residual", part)] if engine.unfused_norm else ()),
    ]


def read_by_linear(engine: EngineTraits, elements: int) -> int:
    """Bytes of the input that a linear layer keeps for its weight gradient (Transformer Engine `module/linear.py`)."""
    return ceil((engine.size if engine.quantised is None else engine.quantised.columns) * elements)


def copied_by_linear(engine: EngineTraits, elements: int) -> int:
    """Bytes of the quantised copy of a tensor that another module keeps anyway, such as attention's output.

    Megatron-core lets the layer keep that tensor itself (``set_save_original_input``), except with delayed scaling.
    """
    alone = engine.quantised is not None and not engine.quantised.shares
    return read_by_linear(engine, elements) if alone else 0


def norm_of_attention(size: int, engine: EngineTraits) -> list[SavedTensor]:
    """The norm before attention, which Transformer Engine fuses with the linear layer after it."""
    return norm(size, engine, moved=_FUSED, linears=1)


def attention(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """Queries, keys, values and attention's output, which the output projection shares (see ``core``)."""
    size, queries, keys = engine.size, model.query_size, model.key_value_size
    norms = size * (queries + keys) if model.qk_norm else 0
    output = size * queries + copied_by_linear(engine, queries)
    read = [_saved("queries, keys, values", size * (queries + 2 * keys) + norms, "tensor", "attention", "core_attn")]
    return [
        *(_own_inputs(model, engine) if engine.key_heads else read),
        _saved("attention output", output, "tensor", "attention", "attn_proj"),
        *core(engine, model.num_attention_heads, queries, model.dropout),
        *dropout(model, engine),
        *rotation(model.head_size, engine),
    ]


def _own_inputs(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """Queries, keys and values of Megatron-core's own attention, which repeats keys and values for grouped queries.

    Grouped queries, norms and the rotation make copies; anything else is a view of the projection, which is then kept
    whole: by values that are not repeated, by the core's inputs if it is recomputed, and by the norm of keys, unless
    that casts its input (``transformer/attention.py``, ``get_query_key_value_tensors``, and
    ``transformer/dot_product_attention.py``).
    """
    size, q, kv, heads = engine.size, model.query_size, model.key_value_size, engine.key_heads or 0
    grouped, cast = heads > model.key_value_heads, engine.unfused_norm > 0 and size < 4
    made = model.qk_norm or model.position_embedding == "rope"
    own = size * q if made or grouped else 0
    own += size * kv if made and (engine.core_inputs or not grouped) else 0
    if engine.core_inputs or not grouped or (model.qk_norm and not cast):
        own += size * (q + 2 * kv)
    if model.qk_norm:
        own += engine.unfused_norm * (q + kv) + (size * (q + kv) if cast else size * q if grouped else 0)
    repeated = 2 * size * model.head_size * heads if grouped else 0
    return [
        _saved("queries, keys, values", own, "tensor", "attention", "core_attn"),
        _saved("repeated keys and values", repeated, "tensor", "core_attention", "core_attn"),
        _saved("causal mask", engine.causal_mask, "token", "core_attention"),
    ]


def core(engine: EngineTraits, heads: int, outputs: int, dropout: float) -> list[SavedTensor]:
    """A log-sum-exp per head, or ``5 a s`` of arXiv:2205.05198: scores, their dropout mask and the dropped scores.

    flash-attn computes with the batch first: Transformer Engine passes it copies of queries, keys and values, which it
    saves in their place, and transposes its output into a copy for the output projection, so that the output is kept
    twice (``attention/dot_product_attention/backends.py``, ``FlashAttention.forward``). An unfused fp32 softmax is
    saved in fp32, beside the input of the product with the values (``fusions/fused_softmax.py``).
    """
    if not engine.scores:
        rows = [_saved("log-sum-exp", _STATISTIC * heads, "tensor", "core_attention")]
        if engine.attention_copy:
            rows.append(
                _saved(
                    "attention output, as its kernel made it",
                    engine.size * outputs,
                    "tensor",
                    "core_attention",
                    "core_attn",
                )
            )
        return rows
    softmax = engine.softmax_size or engine.size
    product = engine.size if dropout or softmax != engine.size else 0
    per_score = softmax + (engine.mask_size if dropout else 0) + product
    # Everything that autograd saves inside the module is offloaded (``saved_tensors_hooks``).
    return [_saved("scores", per_score * heads * engine.sequence_length, "tensor", "core_attention", "core_attn")]


def rotation(rotated: int, engine: EngineTraits) -> list[SavedTensor]:
    """Cosines and sines that each layer computes where no kernel does the rotation (``rope_utils.py``)."""
    return [_saved("cosines and sines", engine.rotary * rotated, "token", "attention")] if engine.rotary else []


def dropout(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """The mask of one residual dropout."""
    mask = engine.mask_size * model.hidden_size
    return [_saved("dropout mask", mask, "residual", "norm")] if model.dropout else []


def feed_forward(model: ModelSpec, engine: EngineTraits, width: int, part: Part = "mlp") -> list[SavedTensor]:
    """Outputs of the first linear layer (gate and up together) and of the activation."""
    inner = (2 + _gate_parts(engine)) * width if model.gated else width
    return [
        _saved("MLP input projection", engine.size * inner, "tensor", part),
        _saved("MLP activation", read_by_linear(engine, width), "tensor", "activation" if part == "mlp" else part),
    ]


def _gate_parts(engine: EngineTraits) -> int:
    """Number of tensors beside gate and up if no kernel fuses them: the activated gate, and up with its offset.

    ``glu`` of ``transformer/mlp.py``, which adds ``glu_linear_offset`` even if it is 0.
    """
    return 2 if engine.unfused else 0


def shared_experts(model: ModelSpec, engine: EngineTraits, width: int) -> list[SavedTensor]:
    """Tensors of the shared experts' MLP, of ``width`` features; the router keeps the norm's output that it reads."""
    copied = copied_by_linear(engine, model.hidden_size)
    return [_saved("input of shared experts", copied, "residual", "moe"), *feed_forward(model, engine, width, "moe")]


def routed(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors of routed experts: input of each dispatched token, those that the expert's MLP saves, the fp32 router.

    The router's weight is applied inside the expert (``transformer/moe/experts.py``): by the gated activation's kernel,
    or that of ``fusions/fused_weighted_squared_relu.py``, else by a product whose factor is saved as well.
    Deterministic un-permutation adds by index, which saves its operand, the expert's output (``moe_utils.py``, torch
    ``derivatives.yaml``).
    """
    hidden, width, size = model.hidden_size, model.moe_intermediate_size, engine.size
    activation = read_by_linear(engine, width)
    weighted = not engine.unfused if model.gated else engine.weighting
    inner = 2 + _gate_parts(engine) if model.gated else 1
    rows = [
        _saved("router", _router(model), "residual", "moe"),
        _saved("expert input", read_by_linear(engine, hidden), "routed", "moe", "expert_fc1"),
        _saved("expert input projection", size * inner * width, "routed_tensor", "moe", "moe_act"),
        _saved("expert activation", activation if weighted else size * width, "routed_tensor", "activation"),
    ]
    if not weighted:
        rows.append(_saved("weighted expert activation", activation, "routed_tensor", "activation"))
    if engine.expert_outputs:
        rows.append(_saved("expert output", size * hidden, "routed", "moe"))
    return rows


def _router(model: ModelSpec) -> int:
    """Bytes of a token's routing: the softmax of its scores and that of the auxiliary loss, in fp32, and its maps.

    The permutation saves probabilities and a mask with the experts first, the dispatcher keeps the originals, and
    each choice has two indices (``topk_routing_with_score_function`` and ``permute`` of
    ``transformer/moe/moe_utils.py``, ``MoEAlltoAllTokenDispatcher.dispatch_preprocess``).
    """
    softmaxes = 2 if model.router_aux_loss_coef else 1
    return (4 * softmaxes + 2 * (4 + 1)) * model.num_experts + 2 * 8 * model.num_experts_per_tok


def latent_attention(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors of multi-head latent attention: latents and their norms; queries, keys, values at full width; output."""
    heads, size = model.num_attention_heads, engine.size
    query = heads * (model.qk_nope_head_dim + model.qk_rope_head_dim)
    values = heads * model.v_head_dim
    ranks = model.q_lora_rank + model.kv_lora_rank
    latents = size * (ranks + model.qk_rope_head_dim) + read_by_linear(engine, ranks)
    output = size * values + copied_by_linear(engine, values)
    return [
        _saved("latents and their norms", latents, "residual", "attention", "qkv_linear"),
        _saved("queries, keys, values", size * (2 * query + values), "tensor", "up_projection", "core_attn"),
        _saved("attention output", output, "tensor", "attention", "attn_proj"),
        *core(engine, heads, values, model.dropout),
        *rotation(model.qk_rope_head_dim, engine),
    ]


def backward_extra(model: ModelSpec, engine: EngineTraits, width: int) -> list[SavedTensor]:
    """Gradients at the peak of the MLP's backward pass: of both its tensors and of the residual stream.

    With low-precision products the gradient also exists by rows and by columns (``grad_output_preprocess``). GELU's
    approximation in torch operations has seven tensors beside its input, and its output is freed by then
    (``bias_gelu_back`` of ``fusions/fused_bias_gelu.py``).
    """
    inner = 2 * width if model.gated else width
    if engine.unfused and model.hidden_act == "gelu_new" and not model.gated:
        inner = (7 - 1) * width
    quantised = ceil(engine.quantised.both * inner) if engine.quantised is not None else 0
    return [
        _saved("gradient of the MLP", engine.size * inner + quantised, "tensor", "mlp"),
        _saved("gradient of the residual stream", engine.size * model.hidden_size, "residual", "mlp"),
    ]


def first_norm_backward(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors of the first norm's backward pass: those that it saved and two gradients."""
    gradients = _saved("gradients of a norm", 2 * engine.size * model.hidden_size, "residual", "norm")
    return [*norm(model.hidden_size, engine), gradients]


def _saved(name: str, size: int, share: Share, part: Part, moved: str = "") -> SavedTensor:
    return SavedTensor(name, size, share, part, offloaded_by=moved)
