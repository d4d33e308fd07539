"""Time of a matrix product on one card, by its tiles and waves.

The result is cut into tiles, each multiprocessor works on one at a time, and a wave is one tile on each of them: the
last wave takes as long as a full one. Each tile size reaches a constant share of the card's peak, and the library picks
the fastest. ``gemm.json`` has the constants of measured cards, written by ``python -m benchmarks.speed.fits.gemm``; any
other card takes those of the nearest generation with its own peak, multiprocessors and bandwidth (``stand_in``).

Left out: casts of weights to fp8, one per step, clocks that drop at full power, and memory layouts.
"""

from collections.abc import Mapping
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from launcher.base.files import JsonObject
from launcher.estimate.speed.card import Card, CardTable
from launcher.spec.values import Dtype, beside_products

CONSTANTS = CardTable(
    Path(__file__).with_name("gemm.json"),
    (
        (12.0, "RTX-PRO-6000"),
        (10.3, "B300-SXM"),
        (10.0, "B200-SXM"),
        (9.0, "H100-SXM-80GB"),
        (8.6, "L40S"),
        (0.0, "A100-SXM-80GB"),
    ),
)

_SPLIT_TILE = 128
"""Side of the tile whose depth is split over multiprocessors when the result has too few tiles for all of them."""

_FP4_BYTES = 1 / 2 + 1 / 16  # Bytes of an element in nvfp4, with one fp8 scale per 16.
_CAST_BYTES = 4 * 4 / 12
"""Bytes that casts move per element of a product's first operand, on average over the twelve products of a layer.

Transformer Engine's norms and activations write fp8 directly; attention's output and the gradients of three outputs are
cast by separate kernels, which read 2 bytes and write rows and columns of 1 byte each.
"""


_CAST_BYTES_FP4 = 8 * 6 / 12
"""The same in nvfp4, where no kernel writes fp4 directly: inputs and gradients of all four products of a layer are read
for their largest values, by rows, and by columns, 2 bytes each (Transformer Engine ``csrc/quantizer.cpp``,
``NVFP4Quantizer::quantize_impl``, with the random Hadamard transform)."""


class Kernel(NamedTuple):
    """The constants of one card's products in one format."""

    start: float  # Seconds before and after the work itself.
    depth: float  # Overhead of the loop over ``k``, in steps of ``k``: filling and draining its pipeline.
    split_depth: float  # Overhead of adding up the parts of a split ``k``, in the same unit.
    smooth: float  # Share of the last wave's idle time that the library fills.
    cores: int  # Multiprocessors.
    # Height, width, and seconds of one wave of such tiles per step of ``k``.
    tiles: tuple[tuple[int, int, float], ...]
    split: float  # Seconds of a wave of split tiles per step of ``k``.
    byte: float  # Seconds per byte read or written.
    operand: float  # Bytes of an element of either operand.
    result: int  # Bytes of an element of the result.
    cast: float  # Bytes moved per element of the first operand to cast it to the format.


@lru_cache(maxsize=65536)
def seconds(m: int, n: int, k: int, dtype: Dtype, card: Card) -> float:
    """Seconds of one product of ``(m, k)`` and ``(k, n)``; 0 for an empty one.

    ``start + max(least over tiles of waves x seconds of a wave, bytes / bandwidth) + cast``, where a wave of
    ``cores`` tiles takes ``cores x tile x 2 (k + depth) / (share x peak)``.
    """
    return kernel_seconds(m, n, k, kernel_of(dtype, card)) if m > 0 and n > 0 and k > 0 else 0.0


def both_passes(
    m: int, n: int, k: int, dtype: Dtype, card: Card, *, trained: bool = True
) -> tuple[float, float, float]:
    """Seconds of a product forward and backward, the weight's gradient included if ``trained``, and forward FLOPs."""
    of_weight = seconds(n, k, m, dtype, card) if trained else 0.0
    return seconds(m, n, k, dtype, card), seconds(m, k, n, dtype, card) + of_weight, 2.0 * m * n * k


def kernel_seconds(m: int, n: int, k: int, kernel: Kernel) -> float:
    """Seconds of one product by the constants of a kernel; :func:`seconds` caches them."""
    cores, smooth = kernel.cores, kernel.smooth
    best = inf
    for height, width, wave in kernel.tiles:
        tiles = -(-m // height) * -(-n // width)
        waves = (1 - smooth) * -(-tiles // cores) + smooth * tiles / cores if tiles > cores else 1.0
        best = min(best, waves * wave)
    best *= k + kernel.depth
    tiles = -(-m // _SPLIT_TILE) * -(-n // _SPLIT_TILE)
    if 2 * tiles <= cores:
        best = min(best, kernel.split * (k / (cores // tiles) + kernel.depth + kernel.split_depth))
    moved = kernel.byte * (kernel.operand * k * (m + n) + kernel.result * m * n)
    return kernel.start + max(best, moved) + kernel.byte * kernel.cast * m * k


def best_share(card: Card) -> float:
    """Share of the card's bf16 peak that its best tiles reach, without start-up, depth overhead and last wave."""
    shares: dict[str, float] = _fitted("bf16", card)["tile_shares"]
    return max(shares.values())


@lru_cache(maxsize=256)
def kernel_of(dtype: Dtype, card: Card) -> Kernel:
    """The constants of a format on a card; a card without fp8 multiplies in bf16, and fp4 uses the tiles of fp8."""
    found = _fitted(dtype, card)
    return kernel_from(found, dtype if found["format"] == "fp8" else beside_products(dtype), card)


def kernel_from(found: Mapping[str, Any], dtype: Dtype, card: Card) -> Kernel:
    """The kernel that a record of constants describes, with a card's peak, multiprocessors and bandwidth."""
    peak, cores = card.peak(dtype), card.cores
    waves = [(*map(int, sides.split("x")), share) for sides, share in found["tile_shares"].items()]
    tiles = tuple((high, wide, 2.0 * cores * high * wide / (peak * share)) for high, wide, share in waves)
    return Kernel(
        start=found["start_seconds"],
        depth=found["depth"],
        split_depth=found["split_depth"],
        smooth=found["smooth"],
        cores=cores,
        tiles=tiles,
        split=2.0 * cores * _SPLIT_TILE**2 / (peak * found["split_share"]),
        byte=1 / (found["memory_share"] * card.memory_bandwidth),
        operand={"fp32": 4, "fp8": 1, "fp4": _FP4_BYTES}.get(dtype, 2),
        result=4 if dtype == "fp32" else 2,
        cast={"fp8": _CAST_BYTES, "fp4": _CAST_BYTES_FP4}.get(dtype, 0.0),
    )


def _fitted(dtype: Dtype, card: Card) -> JsonObject:
    """The record of a format; fp8 is the H100's where the card that stands in for this one was not measured in it."""
    name = "fp8" if dtype in ("fp8", "fp4") and card.fp8 else "bf16"
    cards, measured = CONSTANTS.cards, CONSTANTS.measured(card)
    formats: JsonObject = cards[measured if name in cards[measured]["formats"] else "H100-SXM-80GB"]["formats"]
    return {**formats[name], "format": name}
