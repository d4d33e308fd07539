"""The parameters of a decoder, by its description."""

from __future__ import annotations

from launcher.estimate.families._decoders import values
from launcher.estimate.families._decoders.description import Decoder, Experts
from launcher.estimate.families._weights import linear
from launcher.estimate.rank.tensors import Weight
from launcher.spec import ModelSpec


def embedding(model: ModelSpec, vocabulary: int) -> list[Weight]:
    """The token table, learned positions and the norm of the embeddings."""
    found, hidden = values.decoder(model), model.hidden_size
    width = _outer_width(model)
    rows = [Weight(name=f"{found.table}.weight", shape=(vocabulary, width), split="tensor")]
    if found.positions:
        count = model.max_position_embeddings + found.positions_offset
        rows.append(Weight(name=f"{found.positions}.weight", shape=(count, hidden)))
    if width != hidden:
        rows += linear("project_in", hidden, width, bias=False, split=False)
    return rows + (norm(found, found.embedding_norm, hidden) if found.embedding_norm else [])


def block(model: ModelSpec) -> list[Weight]:
    """The norms, attention, and the MLP or the experts of one block."""
    found, hidden = values.decoder(model), model.hidden_size
    names = [name for name in (found.first, found.after_attention, found.second, found.after_mlp) if name]
    rows = [weight for name in names for weight in norm(found, name, hidden)]
    rows += _attention(model, found)
    return rows + (_mlp(model, found) if found.experts is None else _experts(model, found, found.experts))


def head(model: ModelSpec, vocabulary: int) -> list[Weight]:
    """The last norm and the output projection, whose matrix tied models share with the embedding."""
    found, width = values.decoder(model), _outer_width(model)
    rows = norm(found, found.last, model.hidden_size) if found.last else []
    if width != model.hidden_size:
        rows += linear("project_out", width, model.hidden_size, bias=False, split=False)
    if not model.tie_word_embeddings:
        rows.append(Weight(name="lm_head.weight", shape=(vocabulary, width), split="tensor"))
    if values.flag(model, found.head_bias):
        rows.append(Weight(name="lm_head.bias", shape=(vocabulary,), split="tensor"))
    return rows


def norm(found: Decoder, name: str, *shape: int) -> list[Weight]:
    """A norm, which may have no weights at all."""
    parts = [part for part, there in (("weight", found.norm_weight), ("bias", found.norm_bias)) if there]
    return [Weight(name=f"{name}.{part}", shape=shape) for part in parts]


def _outer_width(model: ModelSpec) -> int:
    """Width of the token table and the output projection: the hidden size, but for OPT-350M."""
    return values.count(model, "word_embed_proj_dim") or model.hidden_size


def _attention(model: ModelSpec, found: Decoder) -> list[Weight]:
    hidden, queries, keys = model.hidden_size, model.query_size, model.key_value_size
    sizes = (queries, keys, keys) if len(found.inputs) > 1 else (queries + 2 * keys,)
    rows: list[Weight] = []
    for name, size in zip(found.inputs, sizes, strict=True):
        rows += linear(f"{found.attention}.{name}", size, hidden, bias=values.flag(model, found.input_bias))
    bias = values.flag(model, found.output_bias)
    rows += linear(f"{found.attention}.{found.output}", hidden, queries, bias=bias, rows=False)
    if found.sinks:
        rows.append(Weight(name=f"{found.attention}.sinks", shape=(model.num_attention_heads,)))
    return rows + (_head_norms(model, found) if values.norms_of_heads(model) else [])


def _head_norms(model: ModelSpec, found: Decoder) -> list[Weight]:
    size, parts = model.head_size, ("weight", "bias") if found.head_norm_bias else ("weight",)
    rows = []
    for name, heads in zip(found.head_norms, (model.num_attention_heads, model.key_value_heads), strict=True):
        shape = {"head": (size,), "all": (heads * size,), "each": (heads, size)}[found.head_norm_size]
        names, shape = [name], shape
        if found.head_norm_copies:
            names = [f"{name}.{found.head_norm_copies.format(head)}" for head in range(heads)]
            shape = (size,)
        rows += [Weight(name=f"{found.attention}.{each}.{part}", shape=shape) for each in names for part in parts]
    return rows


def _mlp(model: ModelSpec, found: Decoder) -> list[Weight]:
    hidden, width, bias = model.hidden_size, model.intermediate_size, values.flag(model, found.mlp_bias)
    inside = f"{found.mlp}." if found.mlp else ""
    rows = linear(f"{inside}{found.gate}", width, hidden, bias=bias) if found.gate else []
    inner = 2 * width if found.gated and not found.gate else width
    rows += linear(f"{inside}{found.up}", inner, hidden, bias=bias)
    rows += linear(f"{inside}{found.down}", hidden, width, bias=bias, rows=False)
    return rows + [Weight(name=f"{inside}{name}", shape=(1,)) for name in found.activation_weights]


def _experts(model: ModelSpec, found: Decoder, experts: Experts) -> list[Weight]:
    """The router, the routed experts, held together in one tensor, and the MLP that every token meets."""
    hidden, width, number = model.hidden_size, model.moe_intermediate_size, model.num_experts
    name, inner = experts.name, 2 * model.moe_intermediate_size
    rows = linear(f"{name}.{experts.router}", number, hidden, bias=experts.router_bias, split=False)
    shapes = {"gate_up_proj": (inner, hidden), "down_proj": (hidden, width)}
    for each, (outputs, inputs) in shapes.items():
        shape = (inputs, outputs) if experts.transposed else (outputs, inputs)
        rows.append(Weight(name=f"{name}.experts.{each}", shape=shape, split="expert", copies=number))
        if experts.bias:
            rows.append(Weight(name=f"{name}.experts.{each}_bias", shape=(outputs,), split="expert", copies=number))
    if shared := values.count(model, experts.shared_width):
        rows += _shared(model, experts, shared)
    return rows


def _shared(model: ModelSpec, experts: Experts, width: int) -> list[Weight]:
    hidden, name = model.hidden_size, experts.shared
    if experts.shared_joined:
        rows = linear(f"{name}.input_linear", 2 * width, hidden, bias=False)
        rows += linear(f"{name}.output_linear", hidden, width, bias=False, rows=False)
    else:
        rows = linear(f"{name}.gate_proj", width, hidden, bias=False)
        rows += linear(f"{name}.up_proj", width, hidden, bias=False)
        rows += linear(f"{name}.down_proj", hidden, width, bias=False, rows=False)
    return rows + (linear(experts.shared_gate, 1, hidden, bias=False, split=False) if experts.shared_gate else [])
