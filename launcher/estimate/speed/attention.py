"""Time of attention and of scans: fused kernels by measured throughput, unfused ones by their products and passes.

A fused kernel gives every multiprocessor blocks of 128 queries of one head. Its time: start-up, an even share of all
work, the tail in which the last blocks run alone (why few heads are slow), and the bytes of queries, keys, values and
outputs, by the constants of ``attention.json`` (``benchmarks.speed.fits.attention``), or of the nearest generation.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from launcher.estimate.rank.engine import AttentionKernel
from launcher.estimate.rank.tensors import Scan, Scans
from launcher.estimate.speed import gemm
from launcher.estimate.speed.card import Card, CardTable
from launcher.estimate.speed.passes import NOTHING, Pass
from launcher.estimate.speed.shape import Shape
from launcher.spec.values import Dtype, beside_products

CONSTANTS = CardTable(
    Path(__file__).with_name("attention.json"),
    ((12.0, "A100-SXM-80GB"), (10.0, "B200-SXM"), (9.0, "H100-SXM-80GB"), (0.0, "A100-SXM-80GB")),
)
"""A card of compute capability 12 (RTX PRO 6000) has only the instructions of an A100."""

_BLOCK = 128  # Queries of a block.
_BACKWARD = 2.5 / (0.98 / 1.13)
"""Backward over forward: five products instead of two, at 0.98 / 1.13 of the throughput: SimuMax's a100_pcie.json
(Apache-2.0, MooreThreads/SimuMax@4dcaae51)."""

_FLASH_2 = {9: 1 / 1.6, 10: 1 / 1.6 * (989.4 / 132) / (2250 / 148)}
"""Speed of FlashAttention 2 relative to a generation's own kernel. On Hopper FlashAttention 3 is 1.5 to 2.0 times as
fast forward and 1.5 to 1.75 times backward (Shah et al. 2024, section 4.1). It does not use Blackwell's instructions:
a multiprocessor is assumed to do there what it does on Hopper. Torch's choice (sdpa) is this kernel up to Hopper, and
cuDNN's after that."""

_FLASH_1 = 1 / 2
"""Speed of FlashAttention relative to FlashAttention 2, which splits its work better and is about twice as fast
(arXiv:2307.08691, abstract). It does not use Hopper's instructions either."""

_FORWARD_PASSES = {"fused_softmax": 4, "masked_in_place": 4, "unfused": 15}
"""Times that the scores are moved as 2-byte elements, beyond the products themselves: softmax and dropout, or an
in-place mask and softmax, read and write once each; unfused: scale (2), mask (3), cast to fp32 (3; only for fp16 does
``softmax`` of torch ``aten/src/ATen/native/SoftMax.cpp`` cast in its kernel), softmax (4) and the cast back (3)."""

_BACKWARD_PASSES = {"fused_softmax": 5, "masked_in_place": 13, "unfused": 14}
"""The same in backward: dropout (2) and softmax (3); unfused: the casts (3 and 3), softmax in fp32 (6), scale (2). For
a view that was filled in place torch copies the gradient, clones it, fills a clone of that, and copies it back (10;
``CopySlices`` of ``csrc/autograd/functions/tensor.cpp``, ``masked_fill``)."""


class Kernel(NamedTuple):
    """The constants of a fused kernel for one card and head size."""

    start: float  # Seconds before and after the work itself.
    pair: float  # Seconds of one multiprocessor per query, key and element of the head.
    tail: float  # Share of a longest block in which not all multiprocessors have work.
    byte: float  # Seconds per byte read or written.


class Sizes(NamedTuple):
    """The sizes of a rank's attention over one micro-batch."""

    batch: int  # Sequences.
    heads: int
    kv_heads: int
    queries: int  # Tokens of a sequence on this rank.
    keys: int  # Most tokens that a query attends to: the window's where there is one.
    query_dim: int  # Elements of a head of queries and keys.
    value_dim: int  # Elements of a head of values.
    causal: bool  # True if a query attends to no later token.

    @property
    def scores(self) -> int:
        """Pairs of a query and a key in all heads, masked ones included."""
        return self.batch * self.heads * self.queries * self.keys


@lru_cache(maxsize=16384)
def forward_seconds(sizes: Sizes, kernel: AttentionKernel, dtype: Dtype, card: Card) -> float:
    """Seconds of attention's forward pass over all heads of a rank; fp8 leaves attention in bf16."""
    if not sizes.scores:
        return 0.0
    if kernel in _FORWARD_PASSES:
        return _scores(sizes, dtype, card) + _passes(_FORWARD_PASSES[kernel], sizes.scores, card)
    return kernel_seconds(sizes, card.cores, kernel_of(max(sizes.query_dim, sizes.value_dim), kernel, dtype, card))


@lru_cache(maxsize=16384)
def backward_seconds(sizes: Sizes, kernel: AttentionKernel, dtype: Dtype, card: Card) -> float:
    """Seconds of attention's backward pass over all heads of a rank."""
    if kernel in _BACKWARD_PASSES and sizes.scores:
        return 2 * _scores(sizes, dtype, card) + _passes(_BACKWARD_PASSES[kernel], sizes.scores, card)
    return _BACKWARD * forward_seconds(sizes, kernel, dtype, card)


def kernel_seconds(sizes: Sizes, cores: int, kernel: Kernel) -> float:
    """Seconds of a fused kernel: ``start + pair x (pairs / cores + tail x longest block) + bytes / bandwidth``.

    A causal mask leaves half of the pairs, and the longest block attends to all keys.
    """
    elements = sizes.query_dim + sizes.value_dim
    pairs = sizes.scores * (0.5 if sizes.causal else 1.0)
    work = kernel.pair * elements * (pairs / cores + kernel.tail * min(_BLOCK, sizes.queries) * sizes.keys)
    moved = 2 * sizes.batch * (sizes.heads * sizes.queries + sizes.kv_heads * sizes.keys) * elements
    return kernel.start + work + kernel.byte * moved


@lru_cache(maxsize=256)
def kernel_of(head_dim: int, kernel: AttentionKernel, dtype: Dtype, card: Card) -> Kernel:
    """The constants of a fused kernel: those of the smallest measured head size that is at least this one."""
    entry = CONSTANTS.cards[CONSTANTS.measured(card)]
    heads = {int(size): found for size, found in entry["heads"].items()}
    found = heads[min((size for size in heads if size >= head_dim), default=max(heads))]
    share = found["share"]
    if card.name not in entry["options"]:  # Scaled by the shares of peak that the two cards' best products reach.
        share *= gemm.best_share(card) / float(entry["best_product"])
    if kernel == "flash_1":
        share *= _FLASH_1
    if kernel in ("flash_1", "flash_2") or (kernel == "sdpa" and card.capability < 10):
        share *= _FLASH_2.get(int(card.capability), 1.0)
    peak = card.peak(beside_products(dtype))
    return kernel_from({**found, "share": share}, peak, card.memory_bandwidth, card.cores)


def kernel_from(found: Mapping[str, float], peak: float, memory_bandwidth: float, cores: int) -> Kernel:
    """The kernel that a record of constants describes: 2 FLOPs per query, key and element of the head."""
    return Kernel(
        start=found["start_seconds"],
        pair=2 * cores / (found["share"] * peak),
        tail=found["tail"],
        byte=1 / (found["memory_share"] * memory_bandwidth),
    )


def _scores(sizes: Sizes, dtype: Dtype, card: Card) -> float:
    """Seconds of both products of every head, scores and outputs, by the same model as any other product."""
    kind = beside_products(dtype)
    rows = sizes.batch * sizes.heads * sizes.queries
    scores = gemm.seconds(rows, sizes.keys, sizes.query_dim, kind, card)
    return scores + gemm.seconds(rows, sizes.value_dim, sizes.keys, kind, card)


def _passes(passes: int, elements: int, card: Card) -> float:
    return card.memory_seconds(2.0 * passes * elements)


_SCANS_SHARE = 0.5
"""Share of the best matrix product's rate that a scan's products reach, with tiles the size of a chunk, a head and a
state [inferred: no run was measured whose scans are bound by their products]."""


def scans(found: Scans, shape: Shape) -> tuple[Pass, Pass]:
    """The forward and backward pass of one block's scans over a micro-batch, which tensor parallel ranks share.

    State spaces and linear attention: each kernel takes the time of its products or of its bytes, whichever is longer.
    """
    if not found.forward:
        return NOTHING, NOTHING
    return _scans(found.forward, shape), _scans(found.backward, shape)


def _scans(kernels: Iterable[Scan], shape: Shape) -> Pass:
    tokens, card, whole = shape.tokens / shape.tensor, shape.card, NOTHING
    peak = _SCANS_SHARE * gemm.best_share(card) * card.peak(beside_products(shape.dtype))
    for flops, moved in kernels:
        seconds = max(flops * tokens / peak, card.memory_seconds(moved * tokens))
        whole = whole.plus(Pass(product_flops=flops * tokens, moved=moved * tokens, memory=seconds, launches=1.0))
    return whole
