"""Tensors that Megatron-core with Transformer Engine saves, bytes for one token.

arXiv:2205.05198 section 4 with the kernels of today: fused attention keeps a log-sum-exp in place of scores, norms and
activations are one kernel each. Compared with the peaks that Megatron-LM's own functional tests record.
"""

from math import ceil

from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.tensors import Part, SavedTensor, Share
from launcher.spec import ModelSpec

_STATISTIC = 4  # A log-sum-exp is an fp32 number.


_FUSED = ("qkv_linear", "qkv_linear")
"""The offloaded module of both tensors of the norm before attention, which is one with the linear."""


def norm(
    size: int, engine: EngineTraits, part: Part = "norm", *, moved: tuple[str, str] = ("", ""), linears: int = 0
) -> list[SavedTensor]:
    """Input and output of a norm, the output being the input of the linear that follows.

    ``moved`` are the modules of ``--offload-modules`` that take them to the host. Beside products in fewer bits each of
    so many ``linears`` keeps the output quantised, in place of the norm's; without any there are other readers.
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
    """Bytes of the input that a linear keeps for its weight's gradient (Transformer Engine ``module/linear.py``)."""
    return ceil((engine.size if engine.quantised is None else engine.quantised.columns) * elements)


def copied_by_linear(engine: EngineTraits, elements: int) -> int:
    """Bytes of the quantised copy beside a tensor that another module keeps in any case: attention's output.

    Megatron-core has the linear keep that tensor itself (``set_save_original_input``), but with delayed scaling.
    """
    alone = engine.quantised is not None and not engine.quantised.shares
    return read_by_linear(engine, elements) if alone else 0


def norm_of_attention(size: int, engine: EngineTraits) -> list[SavedTensor]:
    """The norm before attention, which Transformer Engine has in one module with the linear behind it."""
    return norm(size, engine, moved=_FUSED, linears=1)


def attention(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """Queries, keys, values and the output of attention, which the output projection shares (see ``core``)."""
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
    """Queries, keys and values of Megatron-core's own attention, which repeats the last two for the queries of a group.

    Queries that are one of a group, norms and the rotation make copies; whatever else is read is a view of the
    projection, of which then all is kept: by values that nothing repeats, by what the core reads where it is
    recomputed, and by the norm of keys, unless that casts its input (``transformer/attention.py``,
    ``get_query_key_value_tensors``, and ``transformer/dot_product_attention.py``).
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
    """A log-sum-exp a head, or ``5 a s`` of arXiv:2205.05198: scores, their dropout mask and the dropped scores.

    flash-attn computes with the batch first: Transformer Engine hands it copies of queries, keys and values, which it
    saves in their place, and turns its output back into a copy for the output projection, so that the output is kept
    twice (``attention/dot_product_attention/backends.py``, ``FlashAttention.forward``). A softmax in fp32 without its
    kernel is saved as such, beside what the product with the values reads (``fusions/fused_softmax.py``).
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
    # Whatever autograd saves inside of the module is moved (``saved_tensors_hooks``).
    return [_saved("scores", per_score * heads * engine.sequence_length, "tensor", "core_attention", "core_attn")]


def rotation(rotated: int, engine: EngineTraits) -> list[SavedTensor]:
    """Cosines and sines that a layer computes anew where no kernel rotates (``rope_utils.py``)."""
    return [_saved("cosines and sines", engine.rotary * rotated, "token", "attention")] if engine.rotary else []


def dropout(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """The mask of one residual dropout."""
    mask = engine.mask_size * model.hidden_size
    return [_saved("dropout mask", mask, "residual", "norm")] if model.dropout else []


def feed_forward(model: ModelSpec, engine: EngineTraits, width: int, part: Part = "mlp") -> list[SavedTensor]:
    """Output of the first linear (gate and up together) and of the activation."""
    inner = (2 + _gate_parts(engine)) * width if model.gated else width
    return [
        _saved("MLP input projection", engine.size * inner, "tensor", part),
        _saved("MLP activation", read_by_linear(engine, width), "tensor", "activation" if part == "mlp" else part),
    ]


def _gate_parts(engine: EngineTraits) -> int:
    """Tensors beside gate and up where no kernel joins them: the activated gate, and up with its offset added.

    ``glu`` of ``transformer/mlp.py``, which adds ``glu_linear_offset`` even if it is 0.
    """
    return 2 if engine.unfused else 0


def shared_experts(model: ModelSpec, engine: EngineTraits, width: int) -> list[SavedTensor]:
    """The MLP that every token meets, of ``width`` features; the router keeps the norm's output that it reads."""
    copied = copied_by_linear(engine, model.hidden_size)
    return [_saved("input of shared experts", copied, "residual", "moe"), *feed_forward(model, engine, width, "moe")]


def routed(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """Routed experts: input of each token sent, tensors that the expert's MLP saves, and the router in fp32.

    The router's weight is applied inside the expert (``transformer/moe/experts.py``): the gated activation's kernel
    does it, and that of ``fusions/fused_weighted_squared_relu.py``, else it is a product whose factor is saved beside
    it. Deterministic un-permutation adds by index, which saves what it adds: the expert's output (``moe_utils.py``,
    torch ``derivatives.yaml``).
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

    The permutation saves probabilities and a mask with the experts first, the dispatcher keeps both as they came, and
    each choice has two indices (``topk_routing_with_score_function`` and ``permute`` of
    ``transformer/moe/moe_utils.py``, ``MoEAlltoAllTokenDispatcher.dispatch_preprocess``).
    """
    softmaxes = 2 if model.router_aux_loss_coef else 1
    return (4 * softmaxes + 2 * (4 + 1)) * model.num_experts + 2 * 8 * model.num_experts_per_tok


def latent_attention(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """Multi-head latent attention: both latents and their norms, queries, keys and values at full width, output."""
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
    """The backward pass of the MLP at its peak: gradients of both its tensors and of the residual stream.

    Beside products in fewer bits the gradient is there by rows and by columns as well (``grad_output_preprocess``).
    GELU's approximation in operations of torch has seven tensors beside its input, and its output is gone by then
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
    """The backward pass of the first norm: the tensors that it saved and two gradients."""
    gradients = _saved("gradients of a norm", 2 * engine.size * model.hidden_size, "residual", "norm")
    return [*norm(model.hidden_size, engine), gradients]


def _saved(name: str, size: int, share: Share, part: Part, moved: str = "") -> SavedTensor:
    return SavedTensor(name, size, share, part, offloaded_by=moved)
