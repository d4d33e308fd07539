"""Memory passes of layers with an adapter, beside their matrix products: casts, dequantised weights, the added update.

Bytes that ``peft`` reads and writes (``tuners/lora/layer.py``, ``bnb.py``, ``dora.py`` of 0.21), operator by operator.
"""

from collections.abc import Iterable, Sequence

from launcher.estimate.rank import adapters
from launcher.estimate.rank.tensors import Weight
from launcher.estimate.speed.passes import NOTHING, Pass
from launcher.estimate.speed.products import Product
from launcher.estimate.speed.shape import Shape
from launcher.spec import AdapterSpec

_DEQUANTISED = 2.6
"""Bytes per 4-bit parameter that each pass reads (0.5 and its constants) and writes as 16 bits (bitsandbytes)."""


def passes(block: Sequence[Weight], adapter: AdapterSpec, own: Sequence[Product], shape: Shape) -> tuple[Pass, Pass]:
    """The forward and backward pass that an adapter adds to a block, without its products; empty without an adapter.

    Args:
        block: The weights of the block as in full training.
        adapter: The adapter.
        own: The block's products.
        shape: The rank's part of a micro-batch.
    """
    if adapter.name == "none":
        return NOTHING, NOTHING
    ahead, behind = _cast(adapters.weights(block, adapter), shape)
    if adapter.bits == 8:
        codes, codes_back = _codes(own, shape)
        ahead, behind = ahead.plus(codes), behind.plus(codes_back)
    elif adapter.bits:
        packed = [one for one in own if not one.trained]
        elements = sum(one.outputs * one.inputs * max(1, one.experts) for one in packed)
        unpacked = _pass(_DEQUANTISED * elements / shape.tensor, len(packed), shape)
        ahead, behind = ahead.plus(unpacked), behind.plus(unpacked)
    if not shape.fused_adapters:
        for weight in adapters.targeted(block, adapter):
            own_ahead, own_behind = _of_layer(weight, adapter, shape)
            ahead, behind = ahead.plus(own_ahead), behind.plus(own_behind)
    return ahead, behind


def _of_layer(weight: Weight, adapter: AdapterSpec, shape: Shape) -> tuple[Pass, Pass]:
    """The forward and backward pass of one layer's adapter."""
    if adapter.rotates:
        return _rotated(weight, adapter, shape)
    if shape.execution.compiled and not (adapter.dora or adapter.dropout or adapter.bits):
        return _joined(weight, shape)
    added, added_back = _dora(weight, adapter, shape) if adapter.dora else _added(weight, adapter, shape)
    read, read_back = _inputs(weight, adapter, shape)
    return read.plus(added), read_back.plus(added_back)


def _cast(weights: Iterable[Weight], shape: Shape) -> tuple[Pass, Pass]:
    """Casts of weights under autocast, and of the gradients of trained ones; quantised weights are unpacked instead."""
    if not shape.autocast:
        return NOTHING, NOTHING
    wide = [weight for weight in weights if not weight.quantised]
    each, trained = (4 + shape.size) / shape.tensor, [weight for weight in wide if not weight.frozen]
    return (
        _pass(each * sum(weight.elements for weight in wide), len(wide), shape),
        _pass(each * sum(weight.elements for weight in trained), len(trained), shape),
    )


def _joined(weight: Weight, shape: Shape) -> tuple[Pass, Pass]:
    """The sums of :func:`_added` and :func:`_inputs` in a compiled block, fused into kernels that run without LoRA too.

    Each reads one more tensor, the adapter's product and the gradient of its input, and backward writes the scaled
    gradient of the product. Casts are written once for the layer and the adapter.
    """
    (n, k), z = _sizes(weight, shape), shape.size
    return _pass(z * shape.tokens * n, 0, shape), _pass(z * shape.tokens * (n + k), 0, shape)


def _inputs(weight: Weight, adapter: AdapterSpec, shape: Shape) -> tuple[Pass, Pass]:
    """Casts and dropout of an adapter's input, and the sum of its gradient with the layer's own in backward.

    Under autocast the input is cast to the format of the adapter's parameters (``_cast_input_dtype``) and back, unless
    it already has it, like an fp32 residual stream; with quantised weights only back (``requires_conversion``).
    """
    elements, z, p = shape.tokens * _sizes(weight, shape)[1], shape.size, shape.adapter_size
    held = shape.residual_size if weight.dimension == 0 else z  # Bytes of an element of the layer's input.
    casts = (held != z) + 2 * (held == z != p and not adapter.bits)
    ahead, behind = casts * (z + p), casts * (z + p) + 3 * held
    if adapter.dropout:  # Its output, and a mask of one byte.
        dropped = 2 * max(held, z if adapter.bits else p) + 1
        ahead, behind = ahead + dropped, behind + dropped
    return _pass(ahead * elements, casts + bool(adapter.dropout), shape), _pass(behind * elements, casts + 1, shape)


def _added(weight: Weight, adapter: AdapterSpec, shape: Shape) -> tuple[Pass, Pass]:
    """``result + lora_B(lora_A(x)) * scaling``; a 4-bit layer's result is copied before."""
    elements, z = shape.tokens * _sizes(weight, shape)[0], shape.size
    copied = 2 * z * (adapter.bits == 4)
    return _pass((5 * z + copied) * elements, 2 + bool(copied), shape), _pass(2 * z * elements, 1, shape)


def _rotated(weight: Weight, adapter: AdapterSpec, shape: Shape) -> tuple[Pass, Pass]:
    """OFT's rotation of a layer's input (``OFTRotationModule.forward``), and the gradient through it.

    The input is read, rotated by small matrices and written; if the parameters are wider, it is cast to their format
    before, and back for the product. Computing the matrices is left out of the bytes: it does not grow with the tokens.
    """
    elements, z, p = shape.tokens * _sizes(weight, shape)[1], shape.size, shape.adapter_size
    casts = 2 * (z + p) if p != z else 0
    return _pass((2 * z + casts) * elements, 14 + (p != z) * 8, shape), _pass(
        (4 * z + casts) * elements, 30 + (p != z) * 8, shape
    )


def _dora(weight: Weight, adapter: AdapterSpec, shape: Shape) -> tuple[Pass, Pass]:
    """``result + (m - 1) * base + m * lora_B(lora_A(x)) * scaling``, and ``m`` from the norm of each row of the weight.

    The magnitudes have the parameters' format, and so has all that they multiply. The adapter's product is computed
    from an identity of the input's size, scaled and added to the weight, and its norm is taken; no gradient passes
    there. The FLOPs of these products are left out.
    """
    (n, k), z, p = _sizes(weight, shape), shape.size, shape.adapter_size
    cast = z + p if p != z else 0
    out, back = 2 * (z + p) + 5 * p + (z + 2 * p) + cast, 8 * p + 2 * (z + 2 * p) + 3 * z + 4 * cast
    of_weight = cast * (1 if shape.autocast else 2) + 6 * p + z + _DEQUANTISED * (adapter.bits > 0)
    identity = p + z + cast
    moved = out * shape.tokens * n + of_weight * n * k + identity * k * k
    return _pass(moved, 14, shape), _pass(back * shape.tokens * n, 12, shape)


def _codes(own: Iterable[Product], shape: Shape) -> tuple[Pass, Pass]:
    """Passes beside products of frozen 8-bit weights, forward and backward (``MatMul8bitLt`` of bitsandbytes).

    Forward moves 14 bytes per input (fp16 copy, outliers, codes) and per output (32 bits, fp16, the compute format),
    backward 7 per weight. Products count as 16-bit ones, and the host's wait for outliers is left out.
    """
    frozen = [one for one in own if not one.trained]
    linears = [one for one in frozen if not one.experts]
    experts = 3.0 * sum(one.outputs * one.inputs * one.experts for one in frozen if one.experts)
    rows = 14.0 * shape.tokens * sum(one.outputs + one.inputs for one in linears)
    weights = 7.0 * sum(one.outputs * one.inputs for one in linears)
    return _pass(rows + experts, 8.0 * len(linears), shape), _pass(weights + experts, 2.0 * len(linears), shape)


def roundings(own: Iterable[Product], adapter: AdapterSpec, shape: Shape) -> tuple[Pass, Pass]:
    """Passes of quantization-aware training: torchao rounds inputs and weights by some thirty torch operations.

    Bytes per element of ``z`` bytes: symmetric weights and inputs move ``36 + 8 z`` in forward and ``51 + 4 z`` in
    backward, weight-only int4's asymmetric weights ``72 + 2 z`` and ``110 + 2 z``: operators on fp32 tensors of its
    shape, one by one (``_do_fake_quantize_affine``, ``_bf16_activations_forward``). A frozen weight has no gradient.

    In 4 bits, encoding moves ``160 + 4 z`` and decoding ``105 + 3 z``, in some fifty and some thirty operations
    (``to_mx``, ``to_dtype`` of ``mx_tensor.py``). Forward does both, unless a kernel multiplies codes, and backward
    decodes again, frozen weights too. That such a kernel is faster than a 16-bit one is left out.

    Training in nvfp4 has kernels. They move ``2 z + 17`` per weight: fp32 copies, whose largest value is taken, and
    both codes (``nvfp4_linear.py``); what they move for inputs and gradients is in the products (``gemm``).
    """
    if shape.rounding is None:
        return NOTHING, NOTHING
    linears, z, trained = [one for one in own if not one.experts], shape.size, adapter.name == "none"
    weights = sum(one.outputs * one.inputs for one in linears)
    rows = shape.tokens * sum(one.inputs for one in linears) * shape.rounding.inputs
    if shape.rounding.trains:
        return _pass((2 * z + 17) * weights, 8 * len(linears), shape), _pass(0.0, 5 * len(linears), shape)
    if shape.rounding.codes:
        numbers, made = 105 + 3 * z, not shape.rounding.kernel
        ahead, back = (160 + 4 * z + numbers * made) * (weights + rows), numbers * (weights + rows)
        return _pass(ahead, 2 * len(linears) * (52 + 34 * made), shape), _pass(back, 68 * len(linears), shape)
    ahead, behind = (36 + 8 * z, 51 + 4 * z) if shape.rounding.kept else (72 + 2 * z, 110 + 2 * z)
    moved, moved_back = ahead * weights + (36 + 8 * z) * rows, behind * weights * trained + (51 + 4 * z) * rows
    n = len(linears) * (1 + shape.rounding.inputs)
    return _pass(moved, 26 * n, shape), _pass(moved_back, 12 * n, shape)


def _sizes(weight: Weight, shape: Shape) -> tuple[float, float]:
    """Outputs and inputs of a layer on one tensor parallel rank."""
    n, k = weight.shape
    if weight.split != "tensor":
        return n, k
    return (n / shape.tensor, k) if weight.dimension == 0 else (n, k / shape.tensor)


def _pass(moved: float, launches: float, shape: Shape) -> Pass:
    launches = launches / 2 if shape.execution.compiled else launches
    return Pass(moved=moved, memory=shape.card.memory_seconds(moved), launches=launches)
