"""Temporaries of layers with an adapter: dequantised weights, experts' merged weights, and DoRA's whole weights.

They do not grow with the number of layers: one layer has them at a time, so that the largest one counts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from launcher.base.formula import Value, evaluated
from launcher.estimate.memory.activations import block_input, content, fullest_in_forward, running_blocks
from launcher.estimate.memory.moments import ALWAYS, BLOCK_BACKWARD, LOAD, PASSES, Moment, Moments
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.adapters import folded, module, packable, targeted
from launcher.estimate.rank.counts import block_weights
from launcher.estimate.rank.model import BlockKind, RankModel, code_bits
from launcher.estimate.rank.recomputed import BLOCK
from launcher.estimate.rank.tensors import SavedTensor, Weight

_DORA = "peft tuners/lora/dora.py and a trace of the live tensors of one adapted layer"
_ROWS = ("expert inputs", "expert products", "expert outputs")
"""Saved tensors of experts that compute all at once, whose backward pass is counted instant by instant."""

_OF_LAYER = "z * inputs * (inputs + r) + z_res * outputs * (n_w * inputs + max(2 * inputs, 3 * tok)) + k * tok"
_UNSAVED = (
    "max(z_eye * inputs * inputs + z * inputs * r + z_made * inputs * outputs, "
    "z_res * outputs * (n_w + 2) * inputs, outputs * (z_res * (n_w * inputs + 3 * tok) + z * tok)) "
    "+ (k + z * outputs) * tok"
)


def temporaries(rank: RankModel) -> Iterator[MemoryTerm]:
    """All temporaries that a run with an adapter adds."""
    kinds = [kind for kind in rank.blocks if _routed(kind).keys() >= {*_ROWS}]
    if kinds and rank.engine.grouped_experts and (rank.spec.adapter.bits or rank.spec.adapter.parameters):
        yield from whole_experts(rank)
    if not rank.spec.adapter.parameters:
        yield from dequantised(rank, in_backward=not kinds)
    if rank.cuda and rank.spec.adapter.bits == 8 and rank.blocks:
        yield product_of_8_bits(rank)
    yield from packing(rank)
    if rank.spec.adapter.rotates and rank.blocks:
        yield from rotations(rank)
    if rank.spec.adapter.pissa is not None and rank.blocks:
        yield singular_values(rank)
    if rank.spec.adapter.dora and rank.blocks:
        yield from dora(rank)
        yield from magnitudes(rank)


def dequantised(rank: RankModel, *, in_backward: bool) -> Iterator[MemoryTerm]:
    """The dequantised weight of one linear layer while it multiplies, in forward and again in backward.

    bitsandbytes ``autograd/_functions.py``: ``MatMul4Bit`` and, for 8 bits on the CPU, ``MatMul8bitFp``; GPUs multiply
    8-bit codes directly (``MatMul8bitLt``) and dequantise in backward only. A block's routed experts are dequantised
    together, in the format of the residual stream, and a recomputed block keeps them until its backward pass
    (:func:`whole_experts`; ``in_backward`` is true where that does not apply).
    """
    block = rank.largest_block
    if block.quantised_experts and rank.engine.grouped_experts:
        what, source = "experts' weights, dequantised", "launcher/worker/model/quantised.py, Unpacked"
        z_res, w = rank.engine.residual_size, block.largest_quantised
        yield term("temporary", ("forward",), what, "z_res * w", source, z_res=z_res, w=w)
        if in_backward:
            w = block.quantised_experts
            yield term("temporary", BLOCK_BACKWARD, f"all {what}", "z_res * w", source, z_res=z_res, w=w)
    elif block.largest_quantised:
        yield from _one_linear(rank)


def _one_linear(rank: RankModel) -> Iterator[MemoryTerm]:
    """The dequantised weight of the MLP layer beside which most is held, or the largest where a block has no MLP.

    In forward that is the last layer before the gated product, beside the gate's activation and its own output, if a
    recomputed block saves nothing; otherwise the last layer, beside its output. In backward it is the last layer: the
    gradient of its input exists twice, from the adapter, which has freed that input by then, and from the weight.
    """
    what, source, z = "the largest weight, dequantised", "bitsandbytes autograd/_functions.py", rank.engine.size
    w, stream, passes = rank.elements.largest_quantised, block_input(rank), [*running_blocks(rank)]
    forward = (frozenset[Moment](("forward",)), fullest_in_forward(rank))
    if rank.cuda and rank.spec.adapter.bits == 8:
        forward = (frozenset[Moment](), forward[1])
    if not all(read_last(kind) for _, kind in (forward, *passes)):
        yield term("temporary", forward[0].union(*(moments for moments, _ in passes)), what, "z * w", source, z=z, w=w)
        return
    for moments, kind in (forward, *passes):
        rows = [stream] * 3
        if moments != forward[0]:
            yield content(rank, kind, moments).at("unpacked")
            rows = [stream, *read_last(kind)]
        elif kind.repeats("mlp"):
            rows = [stream, stream, *read_last(kind) * (2 if rank.spec.model.gated else 1)]
        yield term("temporary", moments, what, "z * w", source, z=z, w=w).at("unpacked")
        beside, k = "tensors beside that weight", rank.token_bytes(rows)
        yield term("temporary", moments, beside, "k * tok", source, k=k, tok=rank.tokens).at("unpacked")


def read_last(kind: BlockKind) -> list[SavedTensor]:
    """The input of the MLP's last linear layer; empty for a block without a dense MLP."""
    return [row for row in kind.saved_if_trained if row.part == "activation" and row.readers][-1:]


def whole_experts(rank: RankModel) -> Iterator[MemoryTerm]:
    """A block's experts merged with their adapters, or dequantised, kept until backward, and the merged gradients.

    peft ``tuners/lora/layer.py``, ``ParamWrapper``: one ``torch.baddbmm`` computes ``W + B A`` for the weights of all
    experts, ``[experts, out, in]``. The result is kept while the experts compute (``parametrize.cached``), and by
    autograd for the gradient of their input. Its gradient is as large, and is freed once those of A and B are computed
    from it; backward begins with the last weight. Quantised experts (``worker/model/quantised.py``) exist dequantised
    beside the sum while it is computed; those without an adapter are kept dequantised. Recomputation runs when the
    gradient of the outputs exists.
    """
    adapter, model = rank.spec.adapter, rank.spec.model
    block = block_weights(rank.family, model, model.num_hidden_layers - 1)
    *first, last = (weight for weight in block if weight.split == "expert")
    names = {weight.name for weight in folded(block, adapter)}

    def held(*weights: Weight, times: int = 1) -> int:
        return sum(one.elements * (times if one.name in names else bool(adapter.bits)) for one in weights)

    made, stream = 2 if adapter.bits else 1, block_input(rank)
    for moments, kind in ((frozenset[Moment](("forward",)), fullest_in_forward(rank)), *running_blocks(rank)):
        rows = _routed(kind)
        if not rows.keys() >= {*_ROWS}:
            continue
        read, product, output = map(rows.__getitem__, _ROWS)
        if "forward" in moments and adapter.parameters:
            beside = [stream, stream, read]
            yield _sums(rank, moments, "mlp", [], held(*first))
            yield _sums(rank, moments, "first sum", beside, held(*first, times=made))
            yield _sums(rank, moments, "last sum", [*beside, product], held(*first) + held(last, times=made))
            yield _sums(rank, moments, "last product", [*beside, product, output], held(*first, last))
        if "forward" in moments:
            continue
        yield _sums(rank, moments, "mlp", [], held(*first))
        yield _sums(rank, moments, "experts", [], held(*first, last))
        yield _sums(rank, moments, "last gradient", [stream, product, read], held(*first) + held(last, times=2))
        locals_ = [row for row in (read, product) if row not in kind.saved]  # Locals of the recomputing function.
        beside = [stream, stream, replace(output, bytes=output.undone // 3), *locals_]
        yield _sums(rank, moments, "recomputed", beside, held(*first, last))
        yield content(rank, kind, moments).at("recomputed")
        joined = [product] * (2 if model.gated else 1)
        yield _sums(rank, moments, "first gradient", [stream, *joined, read], held(*first, times=2))
        of_shared = [row for row in kind.saved_if_trained if row.part in ("mlp", "activation")]  # Freed by then.
        left = [row for row in kind.saved if row not in (*of_shared, output)]
        yield content(rank, kind, moments, saved=left).at("last gradient")
        left = [row for row in left if row is read or row.name not in rows]
        yield content(rank, kind, moments, saved=left).at("first gradient")


def _routed(kind: BlockKind) -> dict[str, SavedTensor]:
    return {row.name: row for row in kind.saved_if_trained if row.share.startswith("routed")}


def _sums(rank: RankModel, moments: Moments, instant: str, rows: Sequence[SavedTensor], w: int) -> MemoryTerm:
    values: dict[str, Value] = {"z_res": rank.engine.residual_size, "w": w}
    what, source = "experts' merged weights and their gradient", "peft tuners/lora/layer.py, ParamWrapper"
    expression = "z_res * w + k * tok" if rows else "z_res * w"
    values |= {"k": rank.token_bytes(rows), "tok": rank.tokens} if rows else {}
    return term("temporary", moments, what, expression, source, **values).at(instant)


def product_of_8_bits(rank: RankModel) -> MemoryTerm:
    """Temporaries of a product with 8-bit weights on a GPU, for the largest linear layer.

    First the input's fp16 copy, absolute values and outliers; then its codes, and the product in 32 bits and in fp16.
    """
    block = block_weights(rank.family, rank.spec.model, rank.spec.model.num_hidden_layers - 1)
    half = 0 if rank.spec.precision.compute == "fp16" else 2
    linears = [weight.shape for weight in block if packable(weight) and weight.split != "expert"]
    k = max(max((3 + half) * inputs, inputs + (4 + half) * outputs) for outputs, inputs in linears)
    what, source = "a product of 8-bit codes", "bitsandbytes backends/cuda/ops.py"
    return term("temporary", ("forward",), what, "k * tok", source, k=k, tok=rank.tokens)


def packing(rank: RankModel) -> Iterator[MemoryTerm]:
    """One whole weight while the model is loaded, beside some of its rows in fp32, and then beside its codes.

    8-bit codes are made from an fp16 copy (``int8_vectorwise_quant``).
    """
    elements = rank.elements
    if elements.largest_quantised:
        grouped = elements.quantised_experts and rank.engine.grouped_experts
        z = rank.engine.residual_size if grouped else rank.engine.size
        what, source, w = "a weight being quantised", "launcher/worker/model/quantised.py", elements.largest_quantised
        adapter, rows = rank.spec.adapter, elements.drawn_quantised
        z_code: Value = Fraction(code_bits(adapter)) / 8
        if adapter.bits == 8:
            z_code = 1 if rank.spec.precision.compute == "fp16" else 3
        values: dict[str, Value] = {"z": z, "w": w, "rows": rows, "z_code": z_code}
        formula = "z * w + max(4 * rows, ceil(z_code * w))"
        yield term("temporary", LOAD, what, formula, source, **values).at("packing")


def rotations(rank: RankModel) -> Iterator[MemoryTerm]:
    """OFT's rotations in the blocks that save them: ``in / b`` matrices of ``b x b`` per layer, and their factors.

    Autograd keeps the skew-symmetric matrices, two powers of them and their sum (``_cayley_batch`` of peft 0.21), and
    with fp32 parameters the 16-bit operands of each product. A layer also holds the int64 indices of its matrices'
    upper triangle.
    """
    engine, blocks = rank.engine, sum(kind.count for kind in rank.blocks if not kind.recomputed)
    shapes, b = _shapes(rank), rank.spec.adapter.block_size
    sizes: dict[str, Value] = {"L": blocks or 1, "n": 7 if engine.wide_adapters else 4, "z": engine.size}
    sizes |= {"inputs": sum(inputs for _, inputs in shapes), "b": b}
    source = "peft tuners/oft/layer.py, OFTRotationModule; tensors that autograd saved of it"
    yield term("activations", PASSES, "OFT's rotations", "L * n * z * inputs * b", source, **sizes)
    what, values = "indices of OFT's upper triangles", {"n": rank.layers * len(shapes), "b": b}
    yield term("parameters", ALWAYS, what, "n * 8 * b * (b - 1)", source, **values)


def singular_values(rank: RankModel) -> MemoryTerm:
    """Temporaries of a PiSSA start: the largest weight, the adapter's part of it and their difference, in fp32.

    An exact SVD holds both of its factors beside them (``pissa_init`` of ``tuners/lora/layer.py``).
    """
    outputs, inputs = max(_shapes(rank), key=lambda shape: shape[0] * shape[1])
    sizes: dict[str, Value] = {"w": outputs * inputs}
    formula = "12 * w"
    if not rank.spec.adapter.pissa:
        formula, sizes["k"] = "16 * w + 4 * k * k", min(outputs, inputs)
    what, source = "PiSSA's decomposition of a weight", "peft tuners/lora/layer.py, pissa_init"
    return term("temporary", LOAD, what, formula, source, **sizes).at("pissa")


def dora(rank: RankModel) -> Iterator[MemoryTerm]:
    """DoRA's update as a whole matrix, computed from an identity of the layer's inputs, and three copies of its output.

    First that matrix, its multiple and its sum with the weight coexist (``get_weight_norm``); then the products of the
    tokens with the magnitudes. Where autograd saves them, the identity and its product stay as long. A recomputed block
    saves nothing in forward, so that the identity is an instant of its own, beside each layer's output and the gate's
    activation. Under autocast the weight's side is in fp32, and so is a copy of the input. In backward a recomputed
    block has all of it again, beside the gradient of the residual stream and the stream itself where no norm saves it,
    or under autocast the MLP's input. Its last layer then also has all that the block saves.
    """
    forward, adapted = fullest_in_forward(rank), _adapted(rank)
    by_shape = [_of_layer(rank, *shape) for shape in _shapes(rank)]
    stream: dict[str, Value] = {"n": 2, "h": rank.spec.model.hidden_size}
    values, formula = by_shape[-1], _OF_LAYER
    if BLOCK in forward.recomputed:
        formula = _UNSAVED
        each = [one | _unsaved(rank, forward, weight, one["k"]) for one, weight in zip(by_shape, adapted, strict=True)]
        values = max(each, key=lambda one: evaluated(formula, one))
    what = "DoRA's norm of a weight, beside the residual stream"
    beside = " + n * z_res * h * tok"
    yield term("temporary", ("forward",), what, f"{formula}{beside}", _DORA, **values, **stream).at("dora")
    if rank.spec.checkpointing.mode == "none":
        return
    saves = rank.family.saves_input(rank.spec.model, rank.engine)
    stream["n"] = 1 if saves and not rank.engine.autocast else 2
    for moments, kind in running_blocks(rank):
        if not kind.recomputed_share:
            continue
        yield content(rank, kind, moments).at("dora")
        yield term("temporary", moments, what, f"{_OF_LAYER}{beside}", _DORA, **by_shape[-1], **stream).at("dora")


def _unsaved(rank: RankModel, kind: BlockKind, weight: Weight, k: Value) -> dict[str, Value]:
    """Values of the formula for a forward pass that saves nothing: DoRA's identity, and the gate's activation."""
    engine, rows = rank.engine, {row.name: row for row in kind.saved}
    gate, up = rows.get("activation"), rows.get("up")
    beside = [gate] if gate and not gate.readers and up and up.output_of == module(weight) else []
    z_eye, z_made = (4 + engine.size, 0) if engine.autocast else (engine.size, engine.size)
    return {"z_eye": z_eye, "z_made": z_made, "k": k + rank.token_bytes(beside)}


def _shapes(rank: RankModel) -> list[tuple[int, int]]:
    return [(weight.shape[0], weight.shape[1]) for weight in _adapted(rank)]


def _adapted(rank: RankModel) -> list[Weight]:
    model, adapter = rank.spec.model, rank.spec.adapter
    return targeted(block_weights(rank.family, model, model.num_hidden_layers - 1), adapter)


def _of_layer(rank: RankModel, outputs: int, inputs: int) -> dict[str, Value]:
    engine = rank.engine
    weights = 2 if rank.elements.quantised else 1  # The update, and the weight that was dequantised for it.
    # An fp32 copy of the input, and the block's own copy; with quantised weights both are one.
    beside = (4 if weights == 2 else 4 + engine.size) if engine.autocast else 0
    return {
        "z": engine.size,
        "inputs": inputs,
        "r": rank.spec.adapter.rank,
        "z_res": engine.residual_size,
        "n_w": weights,
        "outputs": outputs,
        "tok": rank.tokens,
        "k": beside * inputs,
    }


def magnitudes(rank: RankModel) -> Iterator[MemoryTerm]:
    """A whole weight and its sum with the zero update while the model is loaded: DoRA's first magnitudes are norms."""
    w = max(outputs * inputs for outputs, inputs in _shapes(rank))
    n = 2 if rank.view.states.parameters < 1 or rank.elements.quantised else 1
    what, source = "weights for DoRA's initial norms", "launcher/worker/model/adapters.py"
    z = rank.engine.size if rank.elements.quantised else rank.dtypes.size("parameters")
    yield term("temporary", LOAD, what, "n * z * w", source, n=n, z=z, w=w).at("magnitudes")
