"""Quantization-aware training: what linear layers save of a weight that they round, and the temporaries of rounding.

torchao rounds a weight in each forward pass, and in each recomputed one, by torch operations on fp32 tensors of its
shape. Tensors that grow with the tokens are saved rows of their block (``rank.model.rounded``).
"""

import re
from collections.abc import Iterator
from fractions import Fraction

from launcher.base.formula import Value
from launcher.estimate.memory.activations import content, fullest_in_forward, places, running_blocks
from launcher.estimate.memory.moments import BEFORE_BLOCKS_BACKWARD, TRAINING, Moment, Moments
from launcher.estimate.memory.terms import MemoryTerm, Pile, term
from launcher.estimate.rank.adapters import module
from launcher.estimate.rank.counts import block_weights
from launcher.estimate.rank.model import BlockKind, RankModel
from launcher.estimate.rank.tensors import Weight

_FP32 = 4
# Bytes per element while a 4-bit code is decoded to fp32, with 6 byte tensors and 6 32-bit tensors; and while it is
# encoded, with 5 byte tensors, 5 32-bit tensors and the temporaries of a scale per 16 (``custom_fp_utils.py``).
_UNPACKED, _PACKED = 30, 25 + Fraction(21, 16)
_CODES = "z_code * (inputs * tok + w)"
# Where kernels encode both operands by rows and by columns: forward, where a weight's largest value is taken from two
# fp32 copies, and backward, first with the gradient's codes, then with the gradients of both operands.
_FORWARD = "max(2 * z_code * inputs * tok + 8 * w, 2 * z_code * (inputs * tok + w) + z * outputs * tok) + k * tok"
_BACKWARD = f"max(2 * z_code * outputs * tok, n * z * inputs * tok - {_CODES}) + z * (inputs * tok + w) + k * tok"
_SAVED = "ceil(linears * (z_code + z_scale / group))"
"""Bytes that a block's linear layers save of their weights for the backward pass."""

_SOURCE = "torchao quantization/qat, prototype/qat and nvfp4_training, torchao 0.18, and traces of a linear's tensors"


def temporaries(rank: RankModel) -> Iterator[MemoryTerm]:
    """Tensors that a step holds because linear layers round their weights and inputs."""
    if not rank.blocks or rank.engine.rounding is None:
        return
    sizes = _sizes(rank)
    yield from _of_blocks(rank, sizes)
    if rank.engine.rounding.codes:
        yield from _coded(rank, sizes)
        return
    what, formula = "scales of the last rounding", "L * (z_scale * linears / group + k * tok)"
    k = 8 * rank.engine.rounding.inputs * len(_linears(rank))
    yield _term("temporary", TRAINING, what, formula, sizes, L=rank.layers, k=k, z_scale=rank.engine.rounding.kept)
    yield _forward(rank, fullest_in_forward(rank), sizes)
    for moments, kind in running_blocks(rank):
        yield content(rank, kind, moments).at("rounding")
        yield from _backward(rank, kind, moments, sizes)


def _linears(rank: RankModel) -> list[Weight]:
    block = block_weights(rank.family, rank.spec.model, rank.spec.model.num_hidden_layers - 1)
    return [weight for weight in block if len(weight.shape) == 2]


def _sizes(rank: RankModel) -> dict[str, Value]:
    """Values of the formulas: sizes of a block's weights and of its last linear's, and bytes that autograd saves."""
    engine, shapes, rounding = rank.engine, [weight.shape for weight in _linears(rank)], rank.engine.rounding
    assert rounding is not None
    trained = rank.spec.adapter.name == "none"
    return {
        "linears": sum(outputs * inputs for outputs, inputs in shapes),
        "w": shapes[-1][0] * shapes[-1][1],
        "width": shapes[-1][1],
        "inputs": shapes[-1][1] * rounding.inputs,
        "z": engine.size,
        "z_code": rounding.codes or engine.size + rounding.saved * trained,
        "z_scale": rounding.scales * trained,
        "group": rounding.group,
        "tok": rank.tokens,
    }


def _of_blocks(rank: RankModel, sizes: dict[str, Value]) -> Iterator[MemoryTerm]:
    """Rounded weights that blocks keep for their backward pass; none of a block that is recomputed."""
    waits = [not rank.blocks[kind].recomputed for kind in rank.order]
    left: dict[Moments, int] = {BEFORE_BLOCKS_BACKWARD: len(waits)}
    left |= {frozenset((moment,)): place for moment, place in places(rank).items()}
    for moments, blocks in left.items():
        yield _term("activations", moments, "rounded weights of blocks", f"n * {_SAVED}", sizes, n=sum(waits[:blocks]))


def _coded(rank: RankModel, sizes: dict[str, Value]) -> Iterator[MemoryTerm]:
    """The last linear layer of a block while it encodes its operands in 4 bits, or decodes them, in both passes.

    The other operand exists by then, and so does the original input. Where a kernel multiplies codes, forward decodes
    nothing, and no operand has its codes yet while the larger one is encoded.
    """
    engine, kind, h = rank.engine, fullest_in_forward(rank), rank.spec.model.hidden_size
    by_kernel, z_res = bool(engine.rounding and engine.rounding.kernel), engine.residual_size
    made = back = "max(z_made * inputs * tok, z_held * inputs * tok + z_made * w) + k * tok"
    if engine.rounding and engine.rounding.trains:
        made, back = _FORWARD, _BACKWARD
    own_input, codes = "z * inputs * tok + ", " - " + _CODES if by_kernel else ""
    numbers: dict[str, Value] = {"z_made": _UNPACKED, "z_held": engine.size, "outputs": h}
    numbers["n"] = 1 + rank.spec.model.gated
    own = numbers | ({"z_made": _PACKED + _FP32 * (engine.size < _FP32), "z_held": 0} if by_kernel else {})
    *_, read, its = map(module, _linears(rank))
    kept = {name for row in kind.saved if not kind.recomputed for name in row.readers}
    # Embeddings, the block's input and its first residual sum, which norms may save; checkpointing keeps the first two.
    rows = 1 if kind.recomputed else 0 if rank.family.saves_input(rank.spec.model, engine) else 3
    k, forward = (rows + (read not in kept)) * z_res * h, frozenset[Moment](("forward",))
    formula = ("" if its in kept else own_input) + made
    formula += codes if not kind.recomputed else "" if by_kernel else " + " + _CODES
    what = "a linear layer's 4-bit operands, beside the residual stream"
    yield _term("temporary", forward, what, formula, sizes, k=k, **own).at("rounding")
    for moments, kind in running_blocks(rank):
        there = content(rank, kind, moments), _term("activations", moments, "weights in 4 bits", _SAVED, sizes)
        yield from (each.at("rounding") for each in there)
        what = "a linear layer's backward pass in 4 bits"
        yield _term("temporary", moments, what, back, sizes, k=z_res * h, **numbers).at("rounding")
        if kind.recomputed:
            yield from (each.at("rounding again") for each in there)
            formula = ("" if any(its in row.readers for row in kind.saved) else own_input) + made + codes
            what = "a linear layer that encodes its operands again, beside the residual stream"
            yield _term("temporary", moments, what, formula, sizes, k=3 * z_res * h, **own).at("rounding again")


def _forward(rank: RankModel, kind: BlockKind, sizes: dict[str, Value]) -> MemoryTerm:
    """The last linear layer of a block while it rounds its input, then its weight: three tensors each, two in fp32.

    A block that is not recomputed is counted elsewhere with all that it saves, so what does not exist yet is
    subtracted. A recomputed block that rounds no inputs is fullest in the previous layer, beside the gate's activation
    and the input of both: while that layer rounds its weight, or while it computes its product.
    """
    saved, rounds_inputs = not kind.recomputed, sizes["inputs"] != 0
    h, engine, made = rank.spec.model.hidden_size, rank.engine, _made(rank, saved=saved)
    x, w = "(8 + z) * inputs * tok", "z_made * w + z * width * tok"  # Its input is still there.
    if rounds_inputs:
        formula = f"max({x} - z_code * w, {w} - z * w)" if saved else f"max({x}, {w})"
    else:
        formula = "z_made * w - z * w" if saved else f"max({w}, z_held * w + (2 * z * width + k_cast) * tok)"
    if not saved:
        k = 2 * engine.residual_size * h + rounds_inputs * engine.size * rank.spec.model.intermediate_size
    elif engine.autocast:  # The norm keeps the residual stream itself, which is in fp32.
        k = (_FP32 + engine.size) * h
    else:
        k = (3 + rounds_inputs) * engine.residual_size * h
    held = {"z_held": engine.size + _FP32 * engine.autocast, "k_cast": engine.size * h * engine.autocast}
    what = "a linear layer that rounds, beside the residual stream"
    moments: Moments = frozenset(("forward",))
    return _term("temporary", moments, what, f"{formula} + k * tok", sizes, k=k, z_made=made, **held).at("rounding")


def _made(rank: RankModel, *, saved: bool) -> int:
    """Bytes per element of a weight while it is rounded, without what autograd saves if that is counted elsewhere."""
    rounding = rank.engine.rounding
    if rounding and not rounding.kept:
        return 8 if saved else rounding.saved
    return 8 + (_FP32 if rank.engine.autocast else rank.engine.size)


def _backward(rank: RankModel, kind: BlockKind, moments: Moments, sizes: dict[str, Value]) -> Iterator[MemoryTerm]:
    """The last linear layer's backward pass beside all that its block saved: products, its weight, its input.

    The gradients of the rounded weight and input come first; then the weight's passes the clamp, in two fp32 tensors
    and two masks; then the input's, once what the weight saved is freed. A recomputed block is fuller before that,
    while the layer rounds again, beside its input, the MLP's input and both residual sums.
    """
    h, engine = rank.spec.model.hidden_size, rank.engine
    trained = rank.spec.adapter.name == "none"
    of_weights = _term("activations", moments, "rounded weights of one block", _SAVED, sizes)
    yield of_weights.at("rounding")
    weight, own = ("z * w + z * width * tok, (z_made - z) * w", "z") if trained else ("z * width * tok", "0")
    formula = f"max({weight}, (10 - {own}) * inputs * tok - 4 * w) + k * tok"
    stream = engine.residual_size + (engine.size if engine.autocast else 0)
    what = "gradients of a linear layer that rounds"
    made, k = 10 if engine.rounding and engine.rounding.kept else 12, stream * h
    yield _term("temporary", moments, what, formula, sizes, k=k, z_made=made).at("rounding")
    if kind.recomputed:
        what, k = "a linear layer that rounds again, beside the residual stream", 3 * engine.residual_size * h
        formula = "max((8 + z) * inputs * tok - z_code * w, (z_made - z) * w + z * inputs * tok) + k * tok"
        made = _made(rank, saved=True)
        yield content(rank, kind, moments).at("rounding again")
        yield of_weights.at("rounding again")
        yield _term("temporary", moments, what, formula, sizes, k=k, z_made=made).at("rounding again")


def _term(pile: Pile, moments: Moments, what: str, formula: str, sizes: dict[str, Value], **own: Value) -> MemoryTerm:
    names, values = set(re.findall(r"[A-Za-z_]+", formula)), sizes | own
    return term(pile, moments, what, formula, _SOURCE, **{name: values[name] for name in values if name in names})
