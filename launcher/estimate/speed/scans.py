"""Time of scans of state spaces and of linear attention: each kernel is as slow as its products or its bytes are."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.estimate.rank.tensors import Scan, Scans
from launcher.estimate.speed import gemm
from launcher.estimate.speed.passes import NOTHING, Pass
from launcher.estimate.speed.shape import Shape
from launcher.spec.values import beside_products

_SHARE = 0.5
"""Share of the best matrix product's rate that a scan's products reach, whose tiles are a chunk, a head and a state
wide [inferred: no run was measured whose scans are bound by their products]."""


def passes(found: Scans, shape: Shape) -> tuple[Pass, Pass]:
    """The forward and the backward pass of one block's scans over a micro-batch, which tensor parallel ranks share."""
    if not found.forward:
        return NOTHING, NOTHING
    return _pass(found.forward, shape), _pass(found.backward, shape)


def _pass(kernels: Iterable[Scan], shape: Shape) -> Pass:
    tokens, card, whole = shape.tokens / shape.tensor, shape.card, NOTHING
    peak = _SHARE * gemm.best_share(card) * card.peak(beside_products(shape.dtype))
    for flops, moved in kernels:
        seconds = max(flops * tokens / peak, card.memory_seconds(moved * tokens))
        whole = whole.plus(Pass(product_flops=flops * tokens, moved=moved * tokens, memory=seconds, launches=1.0))
    return whole
