"""Time of a matrix product on one card, by its tiles and waves."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, log2

from launcher.spec.values import Dtype
from launcher.speed.card import Card

_TILES = ((64, 64), (128, 64), (64, 128), (128, 128), (128, 256), (256, 128))
_START = 2e-6


def _constants(card: Card) -> tuple[float, int, float]:
    if card.capability >= 10:
        return 0.78, 128, 0.1
    if card.capability >= 9:
        return 0.90, 256, 0.1
    return 0.94, 256, 0.3


@lru_cache(maxsize=65536)
def seconds(m: int, n: int, k: int, dtype: Dtype, card: Card) -> float:
    """Seconds of one product of ``(m, k)`` and ``(k, n)``."""
    if not (m and n and k):
        return 0.0
    share, extra, penalty = _constants(card)
    peak = card.peak("bf16" if dtype == "fp8" else dtype)
    best = min(
        ceil(ceil(m / tm) * ceil(n / tn) / card.cores)
        * card.cores
        * tm
        * tn
        * 2
        * (k + extra)
        / (peak * share * (1 - penalty * log2(32768 / (tm * tn)) / 3))
        for tm, tn in _TILES
    )
    moved = 2 * (m * k + k * n + m * n) / (0.8 * card.memory_bandwidth)
    whole = _START + max(best, moved)
    return whole / 1.4 if dtype == "fp8" and card.fp8 else whole
