"""Time of the grouped products of routed experts."""

from __future__ import annotations

from functools import lru_cache

from launcher.spec.values import Dtype
from launcher.speed import gemm
from launcher.speed.card import Card


@lru_cache(maxsize=16384)
def seconds(tokens_per_expert: float, experts: int, n: int, k: int, dtype: Dtype, card: Card) -> float:
    """Seconds of the products of all experts of a rank, each of ``(tokens, k)`` and ``(k, n)``."""
    tokens = max(1, round(tokens_per_expert))
    return experts * (gemm.seconds(tokens * 4, n, k, dtype, card) / 4) * 1.2
