"""Time of attention on one card."""

from __future__ import annotations

from functools import lru_cache

from launcher.rank.execution import AttentionKernel
from launcher.spec.values import Dtype
from launcher.speed.card import Card


@lru_cache(maxsize=16384)
def forward_seconds(
    batch: int,
    heads: int,
    kv_heads: int,
    queries: int,
    keys: int,
    head_dim: int,
    v_head_dim: int,
    causal: bool,
    kernel: AttentionKernel,
    dtype: Dtype,
    card: Card,
) -> float:
    """Seconds of the forward pass of attention, over all heads of a rank."""
    flops = 2.0 * batch * heads * queries * keys * (head_dim + v_head_dim) * (0.5 if causal else 1.0)
    if kernel in ("unfused", "fused_softmax"):
        passes = 6 if kernel == "fused_softmax" else 10
        moved = passes * batch * heads * queries * keys * 2
        return (2.0 if causal else 1.0) * flops / (0.5 * card.peak(dtype)) + moved / (0.85 * card.memory_bandwidth)
    share = 0.53 if card.capability >= 9 else 0.52
    if kernel in ("flash_2", "sdpa") and card.capability >= 9:
        share *= 0.65
    share *= keys / (keys + 800) * min(1.0, 0.5 + batch * heads / 32)
    return flops / (share * card.peak(dtype)) + 5e-6


def backward_seconds(
    batch: int,
    heads: int,
    kv_heads: int,
    queries: int,
    keys: int,
    head_dim: int,
    v_head_dim: int,
    causal: bool,
    kernel: AttentionKernel,
    dtype: Dtype,
    card: Card,
) -> float:
    """Seconds of its backward pass."""
    forward = forward_seconds(batch, heads, kv_heads, queries, keys, head_dim, v_head_dim, causal, kernel, dtype, card)
    return forward * (2.0 if kernel in ("unfused", "fused_softmax") else 2.5 / 0.87)
