"""Tensors that Hugging Face ``transformers`` modules save, in bytes per token.

Counted by reading the tensors that autograd saves for the modules of transformers 5.23 block by block (each storage
once) in bf16, fp32 and under autocast; a test repeats it. Parameters, rotary tables and token ids are left out.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.tensors import Module, Part, SavedTensor, Share
from launcher.spec import ModelSpec

type Router = Literal["narrow", "sigmoid", "softmax"]
"""Scores in the compute format (Mixtral), or in fp32 by a sigmoid (DeepSeek-V3) or a softmax (DeepSeek-V2)."""

_INDEX = 8  # A token index or an expert choice is an int64.
_DOWN = ("down_proj", "c_proj")  # The last linear layer of an MLP, in Llama and in GPT-2.
_PROJECTION = ("o_proj", "c_proj")  # The layer that reads attention's output, in Llama and in GPT-2.
_HEAD_NORMS = "head norms"
_FP32 = 4
OUTPUT, STREAM = "output of the norm", "residual stream"  # Names of what a module's linear layers read and save.
_STATISTIC = 4  # Bytes of a mean, a reciprocal deviation or a log-sum-exp, an fp32 number.


def inside(module: Module, rows: Iterable[SavedTensor], read: str) -> list[SavedTensor]:
    """Assign rows to a module, which is recomputed from the tensor named ``read``."""
    return [replace(row, module=module, input=read) for row in rows]


def behind(norm: list[SavedTensor], module: Module, rows: list[SavedTensor]) -> list[SavedTensor]:
    """A norm's own tensors, and those of the module after it, whose linear layers save the norm's output."""
    own = [row for row in norm if row.name not in (OUTPUT, STREAM)]
    linears = [row for row in norm if row.name in (OUTPUT, STREAM)]
    return inside("norm", own, f"input of the norm before {module}") + inside(
        module, [*linears, *rows], f"input of {module}"
    )


def norm(size: int, model: ModelSpec, engine: EngineTraits, *, readers: tuple[str, ...] = ("",)) -> list[SavedTensor]:
    """A norm and the copies of its output that the following linear layers save.

    RMSNorm as Python code saves its input in fp32, the normalized values before and after the weight and the reciprocal
    deviation; as one kernel its input, its output and the deviation. LayerNorm is one kernel: input, output, mean and
    deviation. Under autocast each following linear layer saves its own cast of the output, and RMSNorm's output is
    freed; grouped experts index rows of it, which saves no cast. ``readers`` are the modules that read the output.
    """
    whole = engine.residual_size
    if model.normalization == "layernorm":
        statistic = whole if engine.cpu else _STATISTIC
        rows = [SavedTensor("LayerNorm", whole * size + 2 * statistic, "residual", "norm")]
    elif engine.fused_norm:
        rows = [SavedTensor("RMSNorm", whole * size + _STATISTIC, "residual", "norm")]
    else:
        rows = [
            SavedTensor("RMSNorm", 4 * size + _STATISTIC, "residual", "norm"),
            _scaled(whole * size, "residual", "norm"),
        ]
    # DTensor gathers a split sequence before the linear layers that read it, which save the whole one.
    if engine.autocast:
        cast = [name for name in readers if name != "experts" or not engine.grouped_experts]
        return rows + [_output(engine.size * size, (reader,)) for reader in cast]
    return [*rows, _output(whole * size, readers)]


def saves_input(model: ModelSpec, engine: EngineTraits) -> bool:
    """True if a norm saves its input: a norm in one kernel, or RMSNorm as Python code on an fp32 residual stream."""
    return model.normalization == "layernorm" or engine.fused_norm or engine.residual_size == _FP32


def compiled(rows: list[SavedTensor], model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """The rows of a compiled block with RMSNorm and a gated MLP: inputs and outputs of products, and inputs of norms.

    Values between products are recomputed in backward (``min_cut_rematerialization_partition`` of
    ``torch/_functorch/partitioners.py``): normalized values and the gate's activation. A norm's input is the block's
    input or, for the second norm, attention's projection, to which the residual stream is added again; all readers of a
    norm's output share a cast. Where products read fp8 casts (``casts_again``), their inputs are recomputed as well.
    Norms of heads keep the outputs of the query and key projections, and the reciprocal deviation of each head. Eager
    attention and dropout were not examined, and count as without a compiler.
    """
    if engine.scores or model.dropout or model.normalization == "layernorm" or not model.gated:
        return rows
    found: dict[tuple[str, str | None], SavedTensor] = {}
    inputs = [engine.size * model.hidden_size, engine.residual_size * model.hidden_size]
    for row in rows:
        if row.name == "RMSNorm":
            found[row.name, row.input] = replace(row, bytes=inputs.pop() + _STATISTIC)
        elif row.name == _HEAD_NORMS:
            heads = model.num_attention_heads + model.key_value_heads
            made = engine.size * (model.query_size + model.key_value_size)
            found[row.name, row.module] = replace(row, bytes=made + _STATISTIC * heads)
        elif engine.casts_again and row.name in (OUTPUT, "product"):
            continue
        elif row.name == OUTPUT and (first := found.get((OUTPUT, row.module))):
            found[OUTPUT, row.module] = replace(first, readers=first.readers + row.readers)
        elif row.name not in ("normalized values", "activation"):
            found[row.name, row.module] = row
    return list(found.values())


def _scaled(size: int, share: Share, part: Part) -> SavedTensor:
    """The normalized values, from which the gradient of RMSNorm's weight is computed."""
    return SavedTensor("normalized values", size, share, part, readers=("norm",), only_readers=True)


def _output(size: int, readers: tuple[str, ...]) -> SavedTensor:
    return _read(OUTPUT, size, "token", "norm", readers)


def attention(model: ModelSpec, engine: EngineTraits, *, wide_softmax: bool = True) -> list[SavedTensor]:
    """Grouped-query attention: queries, keys, values, output (which the output projection shares), log-sum-exp.

    Eager attention saves repeated keys and values, fp32 probabilities and their copy in the compute format; a module
    that normalizes in the compute format (not ``wide_softmax``) saves them once.
    """
    size, queries, keys = engine.size, model.query_size, model.key_value_size
    rows = []
    if model.qk_norm:
        heads = model.num_attention_heads + model.key_value_heads
        # The rotary embedding copies the output of a head's norm, so that output is not kept.
        own = size if engine.fused_norm else 4
        rows.append(SavedTensor(_HEAD_NORMS, own * (queries + keys) + _STATISTIC * heads, "tensor", "attention"))
        if not engine.fused_norm:
            rows.append(_scaled(size * (queries + keys), "tensor", "attention"))
    if engine.scores:
        keys = queries
    elif engine.key_heads:
        keys = keys // model.key_value_heads * engine.key_heads
    inputs = [SavedTensor("queries", size * queries, "tensor", "attention")]
    inputs += [SavedTensor(name, size * keys, "tensor", "attention") for name in ("keys", "values")]
    inputs += core(model, engine, wide_softmax=wide_softmax)
    rows += [
        *(unfused_attention(model, queries, engine) if engine.unfused_attention else inputs),
        _attention_output(size * queries, engine),
        *dropout(model, engine),
    ]
    if engine.attention_copy or _joined_heads(model):
        rows.append(_read("output for its projection", size * queries, "tensor", "core_attention", _PROJECTION))
    return rows


def _joined_heads(model: ModelSpec) -> bool:
    """True if part of each head is rotated and concatenated with the rest: attention's output then has heads first."""
    part: float = (model.rope_parameters or {}).get("partial_rotary_factor", 1)
    return part != 1


def _attention_output(size: int, engine: EngineTraits) -> SavedTensor:
    """Attention's output: attention itself keeps it if it stores no scores; the output projection always reads it."""
    stored = engine.scores or engine.unfused_attention
    row = SavedTensor("attention output", size, "tensor", "core_attention", kept_by_selective=not stored)
    return replace(row, readers=_PROJECTION, only_readers=stored)


def core(model: ModelSpec, engine: EngineTraits, *, wide_softmax: bool) -> list[SavedTensor]:
    """Tensors that attention saves besides its inputs and output: a log-sum-exp per head, or the scores."""
    heads = model.num_attention_heads
    if not engine.scores:
        return [SavedTensor("log-sum-exp", _STATISTIC * heads, "tensor", "core_attention", kept_by_selective=True)]
    # The fp32 softmax is a separate tensor only if the module casts it back.
    softmax = 4 if wide_softmax and engine.size < 4 else 0
    mask = engine.size + engine.mask_size if model.dropout else 0
    rows = heads * engine.sequence_length
    row = SavedTensor("scores", (softmax + engine.size + mask) * rows, "tensor", "core_attention")
    return [scored(row, rows, engine) if wide_softmax else row]


def unfused_attention(model: ModelSpec, values: int, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors that attention saves where torch has no kernel for it: queries, keys, values and the softmax, in fp32.

    ``_scaled_dot_product_attention_math`` of ``aten/src/ATen/native/transformers/attention.cpp``. While the softmax is
    computed, the scores and a flag for each of them exist (``_safe_softmax``), and the arguments of the call: unscaled
    queries, keys and values that heads share, under Ulysses also before their exchange. During its backward two
    gradients of its size exist. Dropout keeps its mask, on the CPU as fp32 factors, and the product's input.
    """
    given = _FP32 * (model.query_size + 2 * model.key_value_size) * (2 if engine.exchanged_heads else 1)
    queries, scores = _FP32 * model.query_size, model.num_attention_heads * engine.sequence_length
    dropped = (_FP32 if engine.cpu else 1) + _FP32 if model.dropout else 0
    softmax = SavedTensor("softmax", (_FP32 + dropped) * scores, "tensor", "core_attention")
    return [
        SavedTensor("queries", queries, "tensor", "attention"),
        SavedTensor("keys of every head", queries, "tensor", "attention"),
        SavedTensor("values of every head", _FP32 * values, "tensor", "attention"),
        replace(softmax, made=(2 * _FP32 + 1) * scores + given, undone=3 * _FP32 * scores),
    ]


def mask(model: ModelSpec, engine: EngineTraits) -> int:
    """Bytes of the mask that is added to stored scores, in the embeddings' format; other attention needs none."""
    stored = engine.scores and engine.library == "transformers"
    return engine.residual_size * engine.sequence_length**2 if stored else 0


def scored(row: SavedTensor, scores: int, engine: EngineTraits, *, narrow: bool = False) -> SavedTensor:
    """The row of one token's scores, with the bytes held while they and their gradient are computed (traces).

    An fp32 softmax reads an fp32 copy of narrower scores (``aten/src/ATen/native/SoftMax.cpp``) and makes a third
    tensor; its backward pass has the softmax, its gradient and that of the scores. A ``narrow`` softmax stays in the
    compute format and reads the scores minus their maximum.
    """
    size = engine.size
    copied = size if size < _FP32 else 0
    made = 3 * size if narrow else copied + 2 * _FP32
    return replace(row, made=made * scores, undone=3 * (size if narrow else _FP32) * scores)


def dropout(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """The mask of one residual dropout."""
    if not model.dropout:
        return []
    return [SavedTensor("dropout mask", engine.mask_size * model.hidden_size, "residual", "mlp")]


def feed_forward(model: ModelSpec, engine: EngineTraits, width: int) -> list[SavedTensor]:
    """Tensors saved by the MLP: gate, up, activation and product; without a gate, the activation's, and its output.

    Activation and product are one Liger kernel (``LigerSiLUMulFunction``, ``liger_kernel/ops``), or several kernels.
    ``gelu_new`` is Python code that saves five tensors (its input, tanh, 1 + tanh, half the input, the product).
    """
    size = engine.size
    if model.gated and engine.fused_activation:
        rows = [
            SavedTensor("gate", size * width, "tensor", "mlp", output_of="gate_proj"),
            SavedTensor("up", size * width, "tensor", "mlp", output_of="up_proj"),
            _read("product", size * width, "tensor", "activation", _DOWN),
        ]
    elif model.gated:
        rows = [
            # The gate is dropped once its activation exists.
            SavedTensor("gate", size * width, "tensor", "mlp", output_of="gate_proj", in_forward_peak=False),
            SavedTensor("up", size * width, "tensor", "mlp", output_of="up_proj"),
            SavedTensor("activation", size * width, "tensor", "activation"),
            _read("product", size * width, "tensor", "activation", _DOWN),
            *_inside_gelu_new(model, size * width),
        ]
    else:
        python = model.hidden_act == "gelu_new"
        rows = [
            SavedTensor("up", size * width, "tensor", "mlp", output_of="c_fc"),
            *_inside_gelu_new(model, size * width),
            SavedTensor(
                "activation",
                size * width,
                "tensor",
                "activation",
                readers=_DOWN,
                in_forward_peak=not python,
                only_readers=model.hidden_act in ("gelu", "gelu_new"),
            ),
        ]
    return rows + dropout(model, engine)


def _inside_gelu_new(model: ModelSpec, size: int) -> list[SavedTensor]:
    return [SavedTensor("inside gelu_new", 3 * size, "tensor", "mlp")] if model.hidden_act == "gelu_new" else []


def routed(
    model: ModelSpec,
    engine: EngineTraits,
    *,
    router: Router = "narrow",
    groups: tuple[int, int] = (0, 0),
    hidden: int = 0,
    weighted: int = _FP32,
) -> list[SavedTensor]:
    """Tensors saved by routed experts: indices, inputs, gate and up, activation, product, outputs.

    Grouped, the outputs are kept once, and autocast does not affect the products, which run in the weights' own format
    (transformers ``integrations/moe.py``, ``grouped_mm_experts_forward``). In a loop the outputs are kept before and
    after weighting. A choice keeps its expert's index, its place and token, and its weight; a token keeps the router's
    probabilities and their sum. An fp32 router copies its input. A ``sigmoid`` router keeps the indices of two experts
    per group and of the chosen groups, a mask, and weights and their sum; DeepSeek-V2's ``softmax`` over all experts
    keeps only the mask of its groups, and no sum. ``groups`` are the numbers of groups where ``model`` does not hold
    them, ``hidden`` a token's width inside the experts.

    Grouped, the outputs times their weights, of ``weighted`` bytes, are restored to token order beside inputs and
    outputs (``weighted_out[inv_perm]``). Backward holds that gradient, zeros and the gradient scattered into them, then
    it and the gradients of both factors.
    """
    hidden, width = hidden or model.hidden_size, model.moe_intermediate_size
    size, outputs = (engine.residual_size, 1) if engine.grouped_experts else (engine.size, 2)
    beside = _FP32 if router != "softmax" else model.num_experts if model.n_group > 1 else 0
    copied = _FP32 * model.hidden_size if router != "narrow" and engine.residual_size < _FP32 else 0
    if router == "sigmoid":
        every, chosen = model.n_group or groups[0], model.topk_group or groups[1]
        beside += _INDEX * (2 * every + chosen) + model.num_experts
        beside += _FP32 * (model.num_experts_per_tok + 1)
    made = SavedTensor("expert outputs", outputs * size * hidden + 4 * _INDEX, "routed", "moe")
    if engine.grouped_experts and not engine.shared_experts:
        wide = max(weighted, size)
        made = replace(made, made=2 * (size + wide) * hidden, undone=3 * wide * hidden)
    return [
        SavedTensor("router", _FP32 * model.num_experts + beside, "token", "moe"),
        replace(_read("fp32 input of the router", copied, "token", "moe", ("gate", "router")), in_forward_peak=False),
        _read("expert inputs", size * hidden, "routed", "moe", ("experts",)),
        replace(made, in_forward_peak=False),
        SavedTensor("expert activations", (3 if model.gated else 1) * size * width, "routed_tensor", "moe"),
        _read("expert products", size * width, "routed_tensor", "moe", ("experts",)),
    ]


def behind_exchange(model: ModelSpec, gradients: list[SavedTensor], engine: EngineTraits) -> list[SavedTensor]:
    """Gradients inside experts that ranks share, minus the experts' outputs, which the exchange has freed by then."""
    outputs = engine.size * model.num_experts_per_tok * model.hidden_size
    first, *others = gradients
    return [replace(first, bytes=max(first.bytes - outputs, 0)), *others]


def latent_attention(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by multi-head latent attention: norms of both latents; queries, keys, values, output at full width.

    On the CPU, value heads narrower than query heads take torch's math path: fp32 copies and fp32 scores.
    """
    heads, size = model.num_attention_heads, engine.size
    query = heads * (model.qk_nope_head_dim + model.qk_rope_head_dim)
    values = heads * model.v_head_dim
    rows = norm(model.kv_lora_rank, model, engine, readers=("kv_b_proj",))
    if model.q_lora_rank:
        rows += norm(model.q_lora_rank, model, engine, readers=("q_b_proj",))
    if engine.cpu:
        scores = 4 * heads * engine.sequence_length
        copies = 4 * (2 * query + values)
        rows.append(SavedTensor("fp32 copies and scores", copies + scores, "tensor", "core_attention"))
    else:
        # The values are a slice of the up-projection's output and keep all of it alive.
        up = heads * (model.qk_nope_head_dim + model.v_head_dim)
        rows.append(SavedTensor("queries and keys", size * 2 * query, "tensor", "up_projection"))
        rows.append(SavedTensor("keys and values", size * up, "tensor", "up_projection"))
        rows.append(SavedTensor("log-sum-exp", _STATISTIC * heads, "tensor", "core_attention"))
    rows.append(_attention_output(size * values, engine))
    if engine.attention_copy:
        rows.append(_read("output for its projection", size * values, "tensor", "core_attention", _PROJECTION))
    return rows


def backward_extra(model: ModelSpec, engine: EngineTraits, width: int) -> list[SavedTensor]:
    """Gradients at the peak of the MLP's backward pass: two of its width and that of the residual stream.

    From a trace of FSDP2's backward pass: once the gradients of gate and up exist, the product is freed.
    """
    count = 1 if model.hidden_act in ("gelu", "relu") or engine.fused_activation else 2
    return [
        SavedTensor("gradients of the MLP", count * engine.size * width, "tensor", "mlp"),
        SavedTensor("gradient of the residual stream", engine.residual_size * model.hidden_size, "residual", "mlp"),
    ]


def first_norm_backward(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors of the first norm's backward pass: what it saved, its gradients, and RMSNorm's four fp32 products."""
    python = model.normalization == "rmsnorm" and not engine.fused_norm
    products = 4 * 4 if python else engine.residual_size
    hidden = (products + engine.residual_size) * model.hidden_size
    return [*norm(model.hidden_size, model, engine), SavedTensor("gradients of a norm", hidden, "residual", "norm")]


def _read(name: str, size: int, share: Share, part: Part, readers: tuple[str, ...]) -> SavedTensor:
    """A tensor that only the weight gradients of its readers need."""
    return SavedTensor(name, size, share, part, readers=readers, only_readers=True)
