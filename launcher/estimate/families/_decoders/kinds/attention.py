"""Grouped-query attention over all earlier tokens, or over a window of them, with its variants."""

from dataclasses import replace

from launcher.estimate.families import _transformers
from launcher.estimate.families._decoders import values, windows
from launcher.estimate.families._decoders.description import Decoder
from launcher.estimate.families._decoders.kinds import Part
from launcher.estimate.families._transformers import _read
from launcher.estimate.families._weights import linear
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.tensors import Module, SavedTensor, Weight
from launcher.spec import ModelSpec

MODULE: Module = "attention"
_FP32 = 4
_INDEX = 8  # An index is an int64.


def weights(part: Part) -> list[Weight]:
    """Weights of projections, sinks, and norms of heads; an output gate is a second half of the query projection."""
    model, found = part.model, part.found
    hidden, (queries, keys, inner, output) = found.joined * model.hidden_size, _widths(model, found)
    first = 2 * queries if found.gated_output else queries
    sizes = (first, keys, inner) if len(found.inputs) > 1 else (first + keys + inner,)
    rows: list[Weight] = []
    for name, size in zip(found.inputs, sizes, strict=True):
        rows += linear(f"{found.attention}.{name}", size, hidden, bias=values.flag(model, found.input_bias))
    rows += part.pairs(found.attention, hidden, dict(zip(found.inputs, sizes, strict=True)))
    bias = values.flag(model, found.output_bias)
    rows += linear(f"{found.attention}.{found.output}", model.hidden_size, output, bias=bias, rows=False)
    if found.sinks:
        rows.append(Weight(name=f"{found.attention}.sinks", shape=(model.num_attention_heads,)))
    return rows + (_weights_of_norms(model, found) if values.norms_of_heads(model, found) else [])


def readers(part: Part) -> tuple[str, ...]:
    """The projections to queries, keys and values."""
    return (*part.found.inputs, *part.found.beside.values())


def saved(part: Part, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved: queries, keys and values, the norms of heads, the scores or their log-sum-exp, and the output."""
    model, found, masked = part.model, part.found, windows.is_masked(part.model, part.layer, engine)
    size = engine.size * _widths(model, found)[-1]
    rows = _head_norms(model, found, engine) if values.norms_of_heads(model, found) else []
    rows += part.between_pairs(engine)
    if found.clips_joint:
        joint = engine.size * sum(_widths(model, found)[:3])
        rows.append(SavedTensor("queries, keys and values before they are clipped", joint, "tensor", "attention"))
    unfused = engine.unfused_attention and not (masked or found.repeats_keys)
    if unfused:
        rows += _transformers.unfused_attention(model, _widths(model, found)[-1], engine)
    else:
        rows += _inputs(model, found, engine, masked) + _scores(model, found, engine)
    stored = engine.scores or unfused
    output = SavedTensor("attention output", size, "tensor", "core_attention", kept_by_selective=not stored)
    rows.append(replace(output, readers=(found.output,), only_readers=stored))
    if engine.attention_copy or (found.joins_queries and not engine.scores):
        rows.append(_read("output for its projection", size, "tensor", "core_attention", (found.output,)))
    if found.gated_output:
        rows += _gated(model, found, engine)
    return [*rows, *_transformers.dropout(model, engine)]


def gradients(part: Part, engine: EngineTraits) -> list[SavedTensor]:
    """Gradients of the output and of queries, keys and values, whose saved tensors are kept until all are computed."""
    size = engine.size * sum(_widths(part.model, part.found))
    return [SavedTensor("gradients of attention", size, "tensor", "attention")]


def _widths(model: ModelSpec, found: Decoder) -> tuple[int, int, int, int]:
    """The widths of queries, keys, values and the output, over all heads."""
    value, heads = values.count(model, found.value_width) or model.head_size, found.keys_factor * model.key_value_heads
    return model.query_size, heads * model.head_size, heads * value, model.num_attention_heads * value


def _weights_of_norms(model: ModelSpec, found: Decoder) -> list[Weight]:
    size, parts = model.head_size, ("weight", "bias") if found.head_norm_bias else ("weight",)
    rows: list[Weight] = []
    if found.head_norm_size == "none":
        return rows
    for name, heads in zip(found.head_norms, (model.num_attention_heads, model.key_value_heads), strict=True):
        shape = {"head": (size,), "all": (heads * size,), "each": (heads, size)}[found.head_norm_size]
        names = [name]
        if found.head_norm_copies:
            names = [f"{name}.{found.head_norm_copies.format(head)}" for head in range(heads)]
            shape = (size,)
        rows += [Weight(name=f"{found.attention}.{each}.{part}", shape=shape) for each in names for part in parts]
    return rows


def _gated(model: ModelSpec, found: Decoder, engine: EngineTraits) -> list[SavedTensor]:
    """The sigmoid by which the output is multiplied, and the product; in fp32 norms keep the gate beside queries."""
    one = engine.size * model.query_size
    beside = one if engine.size == _FP32 else 0
    gate = SavedTensor("gate of the output", one + beside, "tensor", "attention")
    return [gate, _read("gated output", one, "tensor", "attention", (found.output,))]


def _inputs(model: ModelSpec, found: Decoder, engine: EngineTraits, masked: bool) -> list[SavedTensor]:
    """Queries, keys and values; a slice of a single projection's output keeps the whole output alive."""
    size, (queries, keys, inner, output) = engine.size, _widths(model, found)
    if engine.scores or found.repeats_keys or masked:
        repeated, inner = queries, output
    elif engine.key_heads:
        repeated = inner = keys // (found.keys_factor * model.key_value_heads) * engine.key_heads
    else:
        repeated = keys
    wide = _FP32 if engine.scores and found.wide_queries else size
    rotated = queries + repeated if found.fixed.get("position_embedding", "rope") == "rope" else 0
    joint = len(found.inputs) == 1 and found.keeps_joint and (not engine.scores or rotated > 0)
    last = queries + 2 * keys if joint else inner
    if joint and not rotated:
        return [SavedTensor("queries, keys and values", size * last, "tensor", "attention")]
    return [
        SavedTensor("queries", wide * queries, "tensor", "attention"),
        SavedTensor("keys", wide * repeated, "tensor", "attention"),
        SavedTensor("queries, keys and values in one" if joint else "values", size * last, "tensor", "attention"),
    ]


def _scores(model: ModelSpec, found: Decoder, engine: EngineTraits) -> list[SavedTensor]:
    """A log-sum-exp per head, or the scores: the fp32 softmax and its cast, and the tanh of a cap.

    Sinks add a column; the maximum score keeps an index.
    """
    heads = model.num_attention_heads
    if not engine.scores:
        return _transformers.core(model, engine, wide_softmax=True)
    if found.softmax != "wide":
        largest = _INDEX if found.softmax == "less largest" else 0
        row = engine.size * (engine.sequence_length + found.sinks) + largest
        sunk = SavedTensor("scores and sinks", row * heads, "tensor", "core_attention")
        return [_transformers.scored(sunk, heads * engine.sequence_length, engine, narrow=True)]
    rows: list[SavedTensor] = []
    if values.value(model, "attn_logit_softcapping"):
        rows.append(
            SavedTensor("capped scores", engine.size * heads * engine.sequence_length, "tensor", "core_attention")
        )
    [softmax] = _transformers.core(model, engine, wide_softmax=True)
    copies = found.score_copies * engine.size * heads * engine.sequence_length
    return [*rows, replace(softmax, made=softmax.made + copies)]


def _head_norms(model: ModelSpec, found: Decoder, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors of the norms of queries and keys, whose outputs rotation copies; without weights only fp32 inputs."""
    both, whole = model.query_size + model.key_value_size, engine.size
    heads = 2 if found.head_norm_size == "all" else model.num_attention_heads + model.key_value_heads
    if found.norm == "layernorm" and found.norm_code != "cohere":
        statistic = whole if engine.cpu else _FP32
        read = 0 if len(found.inputs) == 1 else whole * both  # Slices of what the values keep.
        return [SavedTensor("head norms", read + 2 * statistic * heads, "tensor", "attention")]
    if found.head_norm_size == "none":
        return [SavedTensor("head norms", _FP32 * (both + heads), "tensor", "attention")]
    wide = found.norm_code in ("gemma", "cohere")
    centred = 2 if found.norm_code == "cohere" else 1
    scaled = _read("normalized heads", (_FP32 if wide else whole) * both, "tensor", "attention", ("norm",))
    return [SavedTensor("head norms", centred * _FP32 * both + _FP32 * heads, "tensor", "attention"), scaled]
