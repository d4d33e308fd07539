"""Tensors that a decoder's blocks save for their backward pass, bytes for one token, and the masks of its windows.

Counted as in ``families._transformers``, by reading autograd's saved tensors of each class's own modules; a
test repeats it. Parameters, rotary tables, masks and token ids are left out.
"""

from __future__ import annotations

from dataclasses import replace

from launcher.estimate.families import _transformers
from launcher.estimate.families._decoders import values
from launcher.estimate.families._decoders.description import Decoder
from launcher.estimate.families._hugging_face import ACTIVATIONS
from launcher.estimate.families._transformers import OUTPUT, STREAM, _read, _saved, behind, inside
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.tensors import Module, SavedTensor
from launcher.spec import ModelSpec

_FP32 = 4
_INDEX = 8  # An index is an int64.

_INSIDE = {"relu": 0, "gelu_new": 4, "xielu": 4}
"""Tensors that an activation saves besides its output, where it is not its input alone."""


def block(model: ModelSpec, engine: EngineTraits, *, masked: bool = False) -> list[SavedTensor]:
    """Tensors saved by norms, attention and the MLP or the experts.

    With ``masked`` attention is given a mask, for which keys and values are copied for each head of queries
    (``use_gqa_in_sdpa`` of transformers' ``sdpa_attention.py``).
    """
    found = values.decoder(model)
    attention, mlp = _attention_readers(found), _mlp_readers(found)
    inner = _experts(model, engine) if found.experts else _mlp(model, found, engine)
    word, core = _word(found), _attention(model, found, engine, masked)
    if found.parallel and not found.second:
        return _side_by_side(model, found, engine, core, inner)
    rows = behind(_before(model, found, engine, found.first, attention), "attention", core)
    rows += inside("norm", _after(model, found, engine, found.after_attention), "output of attention")
    between = _before(model, found, engine, found.second, mlp)
    # Where both norms read the same stream, a kernel saves it for both of them.
    rows += behind(between[1:] if found.parallel and found.norm_code == "kernel" else between, word, inner)
    return rows + inside("norm", _after(model, found, engine, found.after_mlp), f"output of {word}")


def _side_by_side(
    model: ModelSpec, found: Decoder, engine: EngineTraits, attention: list[SavedTensor], inner: list[SavedTensor]
) -> list[SavedTensor]:
    """Attention and MLP that read one norm's output: both keep it, unless each linear saves a cast of its own."""
    word, read = _word(found), OUTPUT if engine.autocast else ""
    rows: list[SavedTensor] = []
    for row in _before(model, found, engine, found.first, (*found.inputs, *_mlp_readers(found))):
        if row.name not in (OUTPUT, STREAM):
            rows += inside("norm", [row], "input of the norm")
        elif engine.autocast:
            rows += inside("attention" if row.readers[0] in found.inputs else word, [row], read)
        else:
            rows.append(row)
    return rows + inside("attention", attention, read) + inside(word, inner, read)


def _word(found: Decoder) -> Module:
    return "experts" if found.experts else "mlp"


def saves_input(model: ModelSpec, engine: EngineTraits) -> bool:
    """True if the first norm keeps the block's input as it is, or linears that read it without one do."""
    found = values.decoder(model)
    if not found.first:
        return not engine.autocast
    if found.norm_code in ("llama", "gemma", "wide kernel"):
        return engine.residual_size == _FP32 or (engine.fused_norm and found.norm_code == "llama")
    return found.norm_code == "kernel"


def after_blocks(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by the last norm, whose output the output projection reads."""
    found = values.decoder(model)
    return _before(model, found, engine, found.last or "norm", ("lm_head",))


def backward_extra(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """The backward pass of the MLP at its peak: gradients of its width and that of the residual stream."""
    found = values.decoder(model)
    if found.experts:
        return _transformers.backward_extra(model, engine, model.moe_intermediate_size * model.num_experts_per_tok)
    single = not found.gated and activation(model) in ("gelu", "gelu_pytorch_tanh", "relu")
    return [
        _saved("gradients of the MLP", (1 if single else 2) * engine.size * model.intermediate_size, "tensor", "mlp"),
        _saved("gradient of the residual stream", engine.residual_size * model.hidden_size, "residual", "mlp"),
    ]


def first_norm_backward(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """The backward pass of the first norm: tensors that it saved, and its gradients."""
    found = values.decoder(model)
    if not found.first:
        size = 2 * engine.residual_size * model.hidden_size
        return [*_stream(model, engine, _attention_readers(found)), _saved("gradients", size, "residual", "norm")]
    products = {"llama": 16, "gemma": 16, "cohere": 16, "wide kernel": 8}.get(found.norm_code, engine.residual_size)
    size = (products + engine.residual_size) * model.hidden_size
    rows = _before(model, found, engine, found.first, ("",))
    return [*rows, _saved("gradients of a norm", size, "residual", "norm")]


def activation(model: ModelSpec) -> str:
    """The activation by the name that transformers has for it."""
    key = values.their_key(model.model_type, "hidden_act")
    ours = ACTIVATIONS.get(model.hidden_act, model.hidden_act)
    return str(model.extra.get(key, ours)) if key else ours


def _attention_readers(found: Decoder) -> tuple[str, ...]:
    return found.inputs


def _mlp_readers(found: Decoder) -> tuple[str, ...]:
    if found.experts:
        return (found.experts.router, "experts")
    return (found.gate, found.up) if found.gate else (found.up,)


def _before(
    model: ModelSpec, found: Decoder, engine: EngineTraits, name: str, readers: tuple[str, ...]
) -> list[SavedTensor]:
    """A norm before linears and what those save of its output; without one they save the residual stream."""
    if not name:
        return _stream(model, engine, readers)
    return [*_norm(model.hidden_size, found, engine), *_output(model.hidden_size, engine, readers)]


def _stream(model: ModelSpec, engine: EngineTraits, readers: tuple[str, ...]) -> list[SavedTensor]:
    return [replace(row, name=STREAM) for row in _output(model.hidden_size, engine, readers)]


def _after(model: ModelSpec, found: Decoder, engine: EngineTraits, name: str) -> list[SavedTensor]:
    return _norm(model.hidden_size, found, engine) if name else []


def _output(size: int, engine: EngineTraits, readers: tuple[str, ...]) -> list[SavedTensor]:
    """Inputs that linears save: one for all, or under autocast a cast for each."""
    if engine.autocast:
        return [_read(OUTPUT, engine.size * size, "token", "norm", (reader,)) for reader in readers]
    return [_read(OUTPUT, engine.residual_size * size, "token", "norm", readers)]


def _norm(size: int, found: Decoder, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors that a norm itself saves.

    Gemma's multiplies with its weight in fp32; Cohere's LayerNorm is Python code that saves the centred values twice.
    """
    whole = engine.residual_size
    if found.norm_code == "kernel":
        return [_saved("LayerNorm", whole * size + 2 * (whole if engine.cpu else _FP32), "residual", "norm")]
    if found.norm_code == "wide kernel":
        return [_saved("LayerNorm in fp32", _FP32 * size + 2 * _FP32, "residual", "norm")]
    wide = found.norm_code in ("gemma", "cohere")
    scaled = _read("normalized values", (_FP32 if wide else whole) * size, "residual", "norm", ("norm",))
    if found.norm_code == "cohere":
        return [_saved("centred values", 2 * _FP32 * size + _FP32, "residual", "norm"), scaled]
    if engine.fused_norm and found.norm_code == "llama":
        return [_saved("RMSNorm", whole * size + _FP32, "residual", "norm")]
    return [_saved("RMSNorm", _FP32 * size + _FP32, "residual", "norm"), scaled]


def _attention(model: ModelSpec, found: Decoder, engine: EngineTraits, masked: bool) -> list[SavedTensor]:
    """Queries, keys and values, the norms of heads, the scores or their log-sum-exp, and the output."""
    size, queries = engine.size, model.query_size
    rows = _head_norms(model, found, engine) if values.norms_of_heads(model) else []
    rows += _inputs(model, found, engine, masked) + _scores(model, found, engine)
    output = _saved("attention output", size * queries, "tensor", "core_attention", kept_by_selective=not engine.scores)
    rows.append(replace(output, readers=(found.output,), only_readers=engine.scores))
    if engine.attention_copy or (found.joins_queries and not engine.scores):
        rows.append(_read("output for its projection", size * queries, "tensor", "core_attention", (found.output,)))
    return [*rows, *_transformers.dropout(model, engine)]


def _inputs(model: ModelSpec, found: Decoder, engine: EngineTraits, masked: bool) -> list[SavedTensor]:
    """Queries, keys and values; a slice of one projection's output keeps all of that alive."""
    size, queries, keys = engine.size, model.query_size, model.key_value_size
    repeated = queries if engine.scores or found.repeats_keys or masked else keys
    if engine.key_heads and not engine.scores and not masked:
        repeated = keys // model.key_value_heads * engine.key_heads
    wide = _FP32 if engine.scores and found.wide_queries else size
    rotated = queries + repeated if _rotates(found) else 0
    joint = len(found.inputs) == 1 and found.keeps_joint and (not engine.scores or rotated > 0)
    last = queries + 2 * keys if joint else repeated
    if joint and not rotated:
        return [_saved("queries, keys and values", size * last, "tensor", "attention")]
    return [
        _saved("queries", wide * queries, "tensor", "attention"),
        _saved("keys", wide * repeated, "tensor", "attention"),
        _saved("queries, keys and values in one" if joint else "values", size * last, "tensor", "attention"),
    ]


def _rotates(found: Decoder) -> bool:
    return str(found.fixed.get("position_embedding", "rope")) == "rope"


def _scores(model: ModelSpec, found: Decoder, engine: EngineTraits) -> list[SavedTensor]:
    """A log-sum-exp a head, or the scores: softmax in fp32 and its cast, and the tanh of a cap.

    With sinks the softmax has a column more and stays in the compute format; its largest score is found by index.
    """
    heads = model.num_attention_heads
    if not engine.scores:
        return _transformers.core(model, engine, wide_softmax=True)
    if found.sinks:
        row = engine.size * (engine.sequence_length + 1) + _INDEX
        sunk = _saved("scores and sinks", row * heads, "tensor", "core_attention")
        return [_transformers.scored(sunk, heads * engine.sequence_length, engine, narrow=True)]
    rows: list[SavedTensor] = []
    if values.value(model, "attn_logit_softcapping"):
        rows.append(_saved("capped scores", engine.size * heads * engine.sequence_length, "tensor", "core_attention"))
    [softmax] = _transformers.core(model, engine, wide_softmax=True)
    copies = found.score_copies * engine.size * heads * engine.sequence_length
    return [*rows, replace(softmax, made=softmax.made + copies)]


def _head_norms(model: ModelSpec, found: Decoder, engine: EngineTraits) -> list[SavedTensor]:
    """The norms of queries and keys, whose outputs the rotary embedding copies."""
    both, whole = model.query_size + model.key_value_size, engine.size
    heads = 2 if found.head_norm_size == "all" else model.num_attention_heads + model.key_value_heads
    if found.norm == "layernorm" and found.norm_code != "cohere":
        statistic = whole if engine.cpu else _FP32
        read = 0 if len(found.inputs) == 1 else whole * both  # Slices of what the values keep.
        return [_saved("head norms", read + 2 * statistic * heads, "tensor", "attention")]
    wide = found.norm_code in ("gemma", "cohere")
    centred = 2 if found.norm_code == "cohere" else 1
    scaled = _read("normalized heads", (_FP32 if wide else whole) * both, "tensor", "attention", ("norm",))
    return [_saved("head norms", centred * _FP32 * both + _FP32 * heads, "tensor", "attention"), scaled]


def _mlp(model: ModelSpec, found: Decoder, engine: EngineTraits) -> list[SavedTensor]:
    """Gate, up, activation and product; without a gate, tensors that the activation saves, and its output."""
    one, name = engine.size * model.intermediate_size, activation(model)
    if found.gated:
        rows = [
            replace(_saved("gate", one, "tensor", "mlp"), output_of=found.gate, in_forward_peak=False),
            replace(_saved("up", one, "tensor", "mlp"), output_of=found.up),
            _saved("activation", one, "tensor", "activation"),
            _read("product", one, "tensor", "activation", (found.down,)),
        ]
    else:
        inside = 1 if found.config == "BloomConfig" else _INSIDE.get(name, 1)
        first = replace(_saved("up", min(inside, 1) * one, "tensor", "mlp"), output_of=found.up)
        output = replace(
            _saved("activation", one, "tensor", "activation"),
            readers=(found.down,),
            in_forward_peak=inside < 2,
            only_readers=name != "relu",  # A ReLU's gradient is computed from its output.
        )
        more = [_saved("inside the activation", (inside - 1) * one, "tensor", "mlp")] if inside > 1 else []
        rows = [first, *more, output]
    return rows + _transformers.dropout(model, engine)


def _experts(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """The router, the routed experts that one token meets, and the MLP that every token meets."""
    found = values.decoder(model).experts
    rows = [_clamped(row) for row in _transformers.routed(model, engine)] if found and found.bias else []
    rows = rows or _transformers.routed(model, engine)
    width = values.count(model, found.shared_width) if found else 0
    if width:
        one = engine.size * width
        rows += [
            replace(_saved("gate", one, "tensor", "mlp"), in_forward_peak=False),
            _saved("up", one, "tensor", "mlp"),
            _saved("activation", one, "tensor", "activation"),
            _read("product", one, "tensor", "activation", ("down_proj",)),
        ]
    if width and found and found.shared_gate:
        rows.append(_saved("weighed output", engine.size * (model.hidden_size + 1), "token", "mlp"))
    return rows


def _clamped(row: SavedTensor) -> SavedTensor:
    """gpt-oss clamps gate and up, and adds one to it: twice as many tensors as of another gate."""
    return replace(row, bytes=2 * row.bytes) if row.name == "expert activations" else row


def has_window(model: ModelSpec, layer: int) -> bool:
    """True if a layer has a window: as ``layer_types`` says, else as the class does."""
    if _window(model) is None:
        return False
    kinds = values.value(model, "layer_types")
    if isinstance(kinds, list):
        return bool(kinds[layer : layer + 1] == ["sliding_attention"])
    repeated = values.decoder(model).windows
    every = values.value(model, "sliding_window_pattern")
    if isinstance(every, int) and not isinstance(every, bool) and every > 1:
        repeated = "w" * (every - 1) + "f"
    return not repeated or repeated[layer % len(repeated)] == "w"


def window(model: ModelSpec, layer: int) -> int | None:
    """Tokens that a layer sees at most; None of one that sees all before."""
    return _window(model) if has_window(model, layer) else None


def is_masked(model: ModelSpec, layer: int, engine: EngineTraits) -> bool:
    """True if a layer's attention is given a mask (``launcher.worker.model.network.masks``)."""
    window = _window(model)
    sees_all = window is None or engine.sequence_length <= window
    return model.attention == "sdpa" and not sees_all and has_window(model, layer)


def mask(model: ModelSpec, engine: EngineTraits) -> int:
    """Bytes of the masks of one sequence: with scores one for each kind of layers, else one of a window alone."""
    layers = range(model.num_hidden_layers)
    if engine.scores:
        return len({has_window(model, layer) for layer in layers}) * _transformers.mask(model, engine)
    masked = any(is_masked(model, layer, engine) for layer in layers)
    return engine.size * engine.sequence_length**2 if masked else 0


def _window(model: ModelSpec) -> int | None:
    """Tokens that a layer with a window sees; None where the class has none, or has it switched off."""
    window = values.value(model, "sliding_window")
    off = values.value(model, "use_sliding_window") is False
    return window if isinstance(window, int) and window and not off else None
