"""One block over one micro-batch: its forward and backward passes, and what checkpointing recomputes.

Products and attention come from measured tables; every other kernel that is not fused reads and writes its tensors.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from launcher.estimate.rank.counts import block_weights
from launcher.estimate.rank.family import Family
from launcher.estimate.speed import adapted, attention, collectives, experts, gemm
from launcher.estimate.speed.passes import NOTHING, Pass
from launcher.estimate.speed.products import Product, head_sizes, products
from launcher.estimate.speed.shape import Shape
from launcher.spec import AdapterSpec, CheckpointingSpec, ModelSpec
from launcher.spec.values import beside_products

_FP8_CAST = {"tensor": (33, 14), "compiled": (5, 2), "blocks": (3 + 3 / 32, 3)}
"""Bytes per element and number of kernels to cast one operand to fp8 with torchao (``float8_scaling_utils.py``,
``float8_training_tensor.py``): absolute values (4), their maximum (2), fp32 (6), scaled (8), clamped (8), fp8 (5); the
other kernels compute the scale. Compiled, one kernel reads it for its scale, and one casts it. Blocks of 32 are cast by
one kernel (``triton_to_mxfp8_dim0``, ``mxfp8_quantize``); others bring the scales into the product's layout."""


class BlockPasses(NamedTuple):
    """The passes of one block: forward, backward, and the part of forward that is recomputed."""

    forward: Pass
    backward: Pass
    again: Pass


class BlockKey(NamedTuple):
    """The part of a block's cache key that the model decides."""

    family: Family
    model: ModelSpec
    adapter: AdapterSpec
    layer: int


@lru_cache(maxsize=8192)
def block(key: BlockKey, shape: Shape, checkpointing: CheckpointingSpec) -> BlockPasses:
    """The passes of one block."""
    own, forward, backward = _both(key, shape)
    return BlockPasses(forward, backward, _again(key, own, forward, shape, checkpointing))


@lru_cache(maxsize=8192)
def _both(key: BlockKey, shape: Shape) -> tuple[tuple[Product, ...], Pass, Pass]:
    """The products of one block, and its forward and backward pass, which do not depend on checkpointing."""
    own = products(*key, joined=shape.execution.fused_projections)
    matrix, matrix_back = _products(own, key.model, shape)
    scores, scores_back = _attention(key, shape)
    rest = _memory(key, own, shape)
    scan, scan_back = attention.scans(key.family.traits.scans(key.model, key.layer, shape.size), shape)
    regions = sum(1 for one in own if one.split == 1 and (not one.experts or shape.expert_tensor > 1))
    regions = min(regions, 2) if key.model.num_experts else regions
    tensor = _tensor(key.model, regions, shape)
    routed = any(one.experts for one in own)
    expert = experts.exchange(key.model, shape).plus(experts.sorting(key.model, shape)) if routed else NOTHING
    cast, cast_back = _fp8_casts(own, shape)
    beside, beside_back = adapted.passes(block_weights(key.family, key.model, key.layer), key.adapter, own, shape)
    round_, round_back = adapted.roundings(own, key.adapter, shape)
    forward = _sum(matrix, scores, scan, rest, tensor, expert, cast, beside, round_)
    # Backward moves each tensor and its gradient, and gathers a split sequence once more for weight gradients.
    traffic_back = tensor.times(1.5) if shape.split_sequence else tensor
    beside_back = beside_back.plus(round_back)
    backward = _sum(matrix_back, scores_back, scan_back, rest.times(2.0), traffic_back, expert, cast_back, beside_back)
    return own, forward, backward


def _sum(*parts: Pass) -> Pass:
    whole = NOTHING
    for part in parts:
        whole = whole.plus(part)
    return whole


def _products(own: tuple[Product, ...], model: ModelSpec, shape: Shape) -> tuple[Pass, Pass]:
    """Products of forward and backward: gradients of the input, and of weights that are trained or get one anyway."""
    forward = backward = flops = flops_back = 0.0
    for one in own:
        trained = one.trained or bool(shape.rounding and shape.rounding.codes)  # ``torchao/prototype/qat/mx.py``
        if one.experts:
            ahead, behind, work = experts.product(one, model, shape)
        else:
            n, k = one.local(shape.tensor)
            # A product that tensor parallel ranks do not split works on its part of a split sequence.
            m = shape.tokens if one.split is not None or not shape.split_sequence else shape.tokens // shape.tensor
            ahead, behind, work = gemm.both_passes(m, n, k, shape.dtype, shape.card, trained=trained)
        forward, backward = forward + ahead, backward + behind
        flops, flops_back = flops + work, flops_back + work * (2 if trained else 1)
    count = float(len(own))
    return (
        Pass(products=forward, product_flops=flops, launches=count),
        Pass(products=backward, product_flops=flops_back, launches=2 * count),
    )


def _fp8_casts(own: tuple[Product, ...], shape: Shape) -> tuple[Pass, Pass]:
    """Casts of torchao's linear layers: input and weight in forward, then the gradient with each of them."""
    how = shape.execution.casts
    if shape.dtype != "fp8" or how == "products":
        return NOTHING, NOTHING
    each, kernels = _FP8_CAST["compiled" if how == "tensor" and shape.execution.compiled else how]
    ahead = behind = 0.0
    for one in own:
        if not one.experts:
            n, k = one.local(shape.tensor)
            ahead += n * k + shape.tokens * k
            behind += n * k + shape.tokens * (k + 2 * n)
    count = kernels * len(own)
    return _moved([(each * ahead, 2 * count)], shape), _moved([(each * behind, 4 * count)], shape)


def _attention(key: BlockKey, shape: Shape) -> tuple[Pass, Pass]:
    """Attention over this rank's heads and its part of the queries; it hides a ring exchange of keys."""
    model, execution = key.model, shape.execution
    if not key.family.traits.attends(model, key.layer):
        return NOTHING, NOTHING
    ranks = shape.tensor * shape.ulysses
    kernel = "unfused" if shape.scores and execution.attention.startswith(("flash", "sdpa")) else execution.attention
    keys, causal = _seen(key, shape, kernel)
    query_dim, value_dim = head_sizes(model)
    sizes = attention.Sizes(
        batch=shape.sequences,
        heads=-(-model.num_attention_heads // ranks),
        kv_heads=max(1, model.key_value_heads // ranks),
        queries=shape.queries * shape.ulysses,
        keys=keys,
        query_dim=query_dim,
        value_dim=value_dim,
        causal=causal,
    )
    how = (kernel, beside_products(shape.dtype), shape.card)
    forward, backward = attention.forward_seconds(sizes, *how), attention.backward_seconds(sizes, *how)
    flops = (1.0 if causal else 2.0) * sizes.scores * (query_dim + value_dim)
    launches = {"unfused": 8.0, "masked_in_place": 6.0, "fused_softmax": 5.0}.get(kernel, 2.0)
    ahead = Pass(attention=forward, attention_flops=flops, launches=launches)
    behind = Pass(attention=backward, attention_flops=2.5 * flops, launches=2 * launches)
    ring, ring_bytes = _ring(model, shape, forward)
    ring_back, _ = _ring(model, shape, backward, tensors=2)
    swap, swap_bytes = _ulysses(model, shape)
    ahead = ahead._replace(context=ring + swap, context_bytes=ring_bytes + swap_bytes)
    behind = behind._replace(context=ring_back + swap, context_bytes=2 * ring_bytes + swap_bytes)
    return ahead, behind


def _seen(key: BlockKey, shape: Shape, kernel: str) -> tuple[int, bool]:
    """Number of keys, and whether the kernel skips masked pairs: for a window, the keys of an equal causal triangle.

    A window ``w`` leaves ``s w - w^2 / 2`` pairs of ``s`` tokens. FlashAttention supports windows; torch's kernels get
    a mask instead, and compute every pair.
    """
    window = key.family.traits.window(key.model, key.layer)
    if shape.execution.masked or key.family.traits.masks_tokens:
        return shape.keys, False
    if window is None or window >= shape.keys:
        return shape.keys, True
    if kernel.startswith("flash"):
        return max(1, round(window * (2 - window / shape.keys))), True
    return shape.keys, kernel != "sdpa"


def _ring(model: ModelSpec, shape: Shape, compute: float, tensors: int = 1) -> tuple[float, float]:
    """Seconds and bytes of a ring of keys and values, ``c - 1`` messages that each hide behind a chunk's attention."""
    if shape.context == 1:
        return 0.0, 0.0
    size = tensors * 2.0 * shape.tokens * model.key_value_size * shape.size / shape.tensor
    one = collectives.seconds("send", size, shape.group(shape.context, shape.tensor), shape.network)
    return (shape.context - 1) * max(0.0, one - compute / shape.context), (shape.context - 1) * size


def _ulysses(model: ModelSpec, shape: Shape) -> tuple[float, float]:
    """Seconds and bytes of four all-to-alls: queries, keys, values and the output (arXiv:2309.14509)."""
    if shape.ulysses == 1:
        return 0.0, 0.0
    group = shape.group(shape.ulysses, shape.tensor)
    size = shape.tokens * shape.size / shape.tensor
    each = (model.query_size, model.key_value_size, model.key_value_size, model.query_size)
    whole = sum(collectives.seconds("all_to_all", size * width, group, shape.network) for width in each)
    return whole, size * sum(each)


def _memory(key: BlockKey, own: tuple[Product, ...], shape: Shape) -> Pass:
    """The forward pass of everything between the products, by bytes moved and kernels launched."""
    model, execution = key.model, shape.execution
    moved = launches = 0.0
    parts = (_norms(key, shape), _residual(key, shape), _rotary(key, shape), _activation(own, model, shape))
    for size, kernels in chain.from_iterable(parts):
        moved, launches = moved + size, launches + kernels
    if shape.autocast and key.adapter.name == "none":
        weights = sum(w.elements for w in block_weights(key.family, model, key.layer)) / shape.tensor
        moved, launches = moved + weights * (4 + shape.size), launches + len(own)
    if execution.compiled:
        launches /= 2
    return _moved([(moved, launches)], shape)


def _moved(passes: Iterable[tuple[float, float]], shape: Shape) -> Pass:
    moved = launches = 0.0
    for size, kernels in passes:
        moved, launches = moved + size, launches + kernels
    return Pass(moved=moved, memory=shape.card.memory_seconds(moved), launches=launches)


def _norms(key: BlockKey, shape: Shape) -> Iterator[tuple[float, float]]:
    model, execution = key.model, shape.execution
    norms = sum(
        "norm" in weight.name or ".ln_" in f".{weight.name}"
        for weight in block_weights(key.family, model, key.layer)
        if weight.shape == (model.hidden_size,) and not weight.name.endswith("bias")
    )
    elements, z = shape.residual_tokens * model.hidden_size, shape.residual_size
    one_kernel = execution.fused_norm or execution.compiled or model.normalization == "layernorm"
    yield norms * elements * (2 * z if one_kernel else 4 * z + 24), norms * (1 if one_kernel else 7)


def _residual(key: BlockKey, shape: Shape) -> Iterator[tuple[float, float]]:
    model, execution, sums = key.model, shape.execution, key.family.traits.sums(key.model, key.layer)
    elements, z = shape.residual_tokens * model.hidden_size, shape.residual_size
    if execution.compiled:
        yield sums * elements * 2 * z, 0
        return
    drops = model.dropout > 0
    if execution.fused_residual:
        yield sums * elements * (3 * z + drops), sums
    else:
        one = 1 + drops + model.mlp_bias
        yield sums * elements * (3 * z + drops * (2 * z + 1) + 2 * z * model.mlp_bias), sums * one


def _rotary(key: BlockKey, shape: Shape) -> Iterator[tuple[float, float]]:
    model = key.model
    if not key.family.traits.attends(model, key.layer):
        return
    width = (model.query_size + model.key_value_size) / shape.tensor
    elements, z = shape.tokens * width, shape.size
    if model.position_embedding == "rope":
        one_kernel = shape.execution.fused_rotary or shape.execution.compiled
        yield elements * z * (2 if one_kernel else 10), 2 if one_kernel else 10
    if not shape.execution.compiled:
        yield elements * z * 2, 4


def _activation(own: tuple[Product, ...], model: ModelSpec, shape: Shape) -> Iterator[tuple[float, float]]:
    z, gates = shape.size, 2 if model.gated else 1
    one_kernel = shape.execution.fused_activation or shape.execution.compiled
    for one in own:
        if not one.activated:
            continue
        routed = model.num_experts_per_tok * shape.expert_tensor / shape.tensor if one.experts else 1.0
        elements = shape.tokens * routed * one.inputs / (shape.expert_tensor if one.experts else shape.tensor)
        yield elements * z * ((gates + 1) if one_kernel else 2 * gates + 1), 1 if one_kernel else gates + 1


def _tensor(model: ModelSpec, regions: int, shape: Shape) -> Pass:
    """Tensor parallel collectives of a forward pass: per region, an all-reduce or an all-gather and reduce-scatter."""
    if shape.tensor == 1:
        return NOTHING
    size = float(shape.tokens * model.hidden_size * shape.residual_size)
    group = shape.group(shape.tensor, 1)
    if shape.split_sequence:
        kinds: tuple[collectives.Kind, ...] = ("all_gather", "reduce_scatter")
    else:
        kinds = ("all_reduce",)
    one = sum(collectives.seconds(kind, size, group, shape.network) for kind in kinds)
    left = regions * one * (1 - shape.execution.tensor_overlap)
    return Pass(tensor=left, tensor_bytes=regions * size * len(kinds), launches=float(regions * len(kinds)))


def _again(key: BlockKey, own: tuple[Product, ...], forward: Pass, shape: Shape, how: CheckpointingSpec) -> Pass:
    """The part of the forward pass that the backward pass repeats: none, all, or a selection."""
    if how.mode == "none":
        return NOTHING
    if how.mode == "full":
        return forward
    if shape.megatron:
        return _modules(key, own, shape, how)
    return _children(key, own, shape, how.modules) if how.modules else _operators(key, own, forward, shape)


def _children(key: BlockKey, own: tuple[Product, ...], shape: Shape, names: Iterable[str]) -> Pass:
    """Recomputed modules of ``transformers``, each without its last product, whose output is unused (`early_stop`)."""
    repeated = NOTHING
    inside = tuple(one for one in own if one.part in ("attention", "up_projection"))
    ahead = attention.scans(key.family.traits.scans(key.model, key.layer, shape.size), shape)[0]
    if ("mixer" if ahead.launches else "attention") in names:
        scores = _attention(key, shape)[0].plus(ahead)
        repeated = repeated.plus(_products(inside[:-1], key.model, shape)[0]).plus(scores)
        repeated = repeated.plus(_moved(_rotary(key, shape), shape))
    rest = tuple(one for one in own if one not in inside)
    routed = any(one.experts for one in rest)
    if ("experts" if routed else "mlp") in names:
        repeated = repeated.plus(_products(rest[:-1], key.model, shape)[0])
        repeated = repeated.plus(_moved(_activation(own, key.model, shape), shape))
        if routed:
            repeated = repeated.plus(experts.exchange(key.model, shape)).plus(experts.sorting(key.model, shape))
    if "norm" in names:
        repeated = repeated.plus(_moved(_norms(key, shape), shape))
    return repeated


def _operators(key: BlockKey, own: tuple[Product, ...], forward: Pass, shape: Shape) -> Pass:
    """The forward pass without kept operations: every second product, torch's attention, tensor parallel all-reduces.

    ``launcher/worker/model/network.py``; the grouped products of experts are not kept.
    """
    dense = [one for one in own if not one.experts]
    repeated = (*dense[1::2], *(one for one in own if one.experts))
    matrix, _ = _products(repeated, key.model, shape)
    kept = shape.execution.attention == "sdpa" and not shape.scores
    return forward._replace(
        products=matrix.products,
        product_flops=matrix.product_flops,
        attention=0.0 if kept else forward.attention,
        attention_flops=0.0 if kept else forward.attention_flops,
        tensor=0.0,
        tensor_bytes=0.0,
        context=0.0 if kept else forward.context,
        context_bytes=0.0 if kept else forward.context_bytes,
    )


def _modules(key: BlockKey, own: tuple[Product, ...], shape: Shape, how: CheckpointingSpec) -> Pass:
    """Modules of Megatron-core's ``--recompute-modules``, by default core attention (arXiv:2205.05198, section 5)."""
    routed, repeated = any(one.experts for one in own), NOTHING
    names = how.modules or ("core_attn",)
    if "core_attn" in names:
        scores, _ = _attention(key, shape)
        repeated = repeated.plus(scores._replace(context=0.0, context_bytes=0.0))
    whole = ("moe" if routed else "mlp") in names
    if whole:
        inside = tuple(one for one in own if one.part in ("mlp", "experts"))
        repeated = repeated.plus(_products(inside, key.model, shape)[0])
        if routed:
            repeated = repeated.plus(experts.exchange(key.model, shape)).plus(experts.sorting(key.model, shape))
    if whole or (routed and "moe_act" in names):
        repeated = repeated.plus(_moved(_activation(own, key.model, shape), shape))
    if "mla_up_proj" in names:
        up = tuple(one for one in own if one.part == "up_projection")
        repeated = repeated.plus(_products(up, key.model, shape)[0])
    if "layernorm" in names:
        repeated = repeated.plus(_moved(_norms(key, shape), shape))
    return repeated
