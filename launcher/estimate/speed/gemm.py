"""Time of a matrix product on one card, by its tiles and waves.

The result is cut into tiles, each multiprocessor works on one at a time, and a wave is one tile of each: the last wave
is as long as a full one. Of each tile's size one share of the card's peak is a constant, and the library takes the
fastest. ``gemm.json`` has the constants of measured cards, written by ``python -m benchmarks.speed.fits.gemm``; any
other card takes those of the nearest generation with its own peak, multiprocessors and bandwidth (``stand_in``).

Left out: casts of weights to fp8, one a step, clocks that fall under full power, and layouts.
"""

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from launcher.base.files import JsonObject
from launcher.estimate.speed.card import Card
from launcher.spec.values import Dtype, beside_products

CONSTANTS = Path(__file__).with_name("gemm.json")

_GENERATIONS = (
    (12.0, "RTX-PRO-6000"),
    (10.3, "B300-SXM"),
    (10.0, "B200-SXM"),
    (9.0, "H100-SXM-80GB"),
    (8.6, "L40S"),
    (0.0, "A100-SXM-80GB"),
)
"""The measured card of a compute capability and above: whose kernels stand in for those of a card without a table."""

_SPLIT_TILE = 128
"""Side of the tile whose depth is split over multiprocessors when the result has too few tiles for all of them."""

_FP4_BYTES = 1 / 2 + 1 / 16  # Of an element in nvfp4, with a scale in fp8 for 16.
_CAST_BYTES = 4 * 4 / 12
"""Bytes that casts move for each element of a product's first operand, on average over the twelve of a layer.

Transformer Engine's norms and activations write fp8 at once; attention's output and the gradients of three outputs are
cast by kernels of their own, which read 2 bytes and write the rows and the columns in 1 each.
"""


_CAST_BYTES_FP4 = 8 * 6 / 12
"""The same in nvfp4, where none writes fp4 at once: inputs and gradients of all four products of a layer are read for
their largest values, by rows, and by columns, in 2 bytes each (Transformer Engine ``csrc/quantizer.cpp``,
``NVFP4Quantizer::quantize_impl``, with the random Hadamard transform)."""


class Kernel(NamedTuple):
    """The products of one card in one format."""

    start: float  # Seconds before and after the work itself.
    depth: float  # What the loop over ``k`` costs besides, in steps of ``k``: it fills and drains the pipeline.
    split_depth: float  # The same of adding up the parts of a split ``k``.
    smooth: float  # Share of the last wave's idle time that the library fills.
    cores: int  # Multiprocessors.
    # Height, width, and seconds that one wave of such tiles takes for a step of ``k``.
    tiles: tuple[tuple[int, int, float], ...]
    split: float  # Seconds of a wave of split tiles for a step of ``k``.
    byte: float  # Seconds of a byte that is read or written.
    operand: float  # Bytes of an element of both operands.
    result: int  # Bytes of an element of the result.
    cast: float  # Bytes moved for each element of the first operand to bring it into the format.


@lru_cache(maxsize=65536)
def seconds(m: int, n: int, k: int, dtype: Dtype, card: Card) -> float:
    """Seconds of one product of ``(m, k)`` and ``(k, n)``; 0 of an empty one.

    ``start + max(least over tiles of waves x seconds of a wave, bytes / bandwidth) + cast``, where a wave of
    ``cores`` tiles takes ``cores x tile x 2 (k + depth) / (share x peak)``.
    """
    return kernel_seconds(m, n, k, kernel_of(dtype, card)) if m > 0 and n > 0 and k > 0 else 0.0


def kernel_seconds(m: int, n: int, k: int, kernel: Kernel) -> float:
    """Seconds of one product by the constants of a kernel; :func:`seconds` keeps them."""
    cores, smooth = kernel.cores, kernel.smooth
    best = inf
    for height, width, wave in kernel.tiles:
        tiles = -(-m // height) * -(-n // width)
        waves = (1 - smooth) * -(-tiles // cores) + smooth * tiles / cores if tiles > cores else 1.0
        if waves * wave < best:
            best = waves * wave
    best *= k + kernel.depth
    tiles = -(-m // _SPLIT_TILE) * -(-n // _SPLIT_TILE)
    if 2 * tiles <= cores:
        best = min(best, kernel.split * (k / (cores // tiles) + kernel.depth + kernel.split_depth))
    moved = kernel.byte * (kernel.operand * k * (m + n) + kernel.result * m * n)
    return kernel.start + max(best, moved) + kernel.byte * kernel.cast * m * k


def stand_in(card: Card) -> str | None:
    """The card whose measured kernels stand in for this one's; None where its own were measured."""
    measured = _measured("bf16", card)
    return None if card.name in constants()["cards"][measured]["options"] else measured


def source(card: Card) -> str:
    """The source of a term of products, with the card that stands in where there is one."""
    other = stand_in(card)
    return "launcher/estimate/speed/gemm.json" + (f" (kernels of {other} stand in)" if other else "")


def best_share(card: Card) -> float:
    """Share of the card's bf16 peak that its best tiles reach, start, depth and last wave apart."""
    shares: dict[str, float] = _fitted("bf16", card)["tile_shares"]
    return max(shares.values())


@lru_cache(maxsize=256)
def kernel_of(dtype: Dtype, card: Card) -> Kernel:
    """The constants of a format on a card; a card without fp8 multiplies in bf16, and fp4 has the tiles of fp8."""
    found = _fitted(dtype, card)
    return kernel_from(found, dtype if found["format"] == "fp8" else beside_products(dtype), card)


def kernel_from(found: Mapping[str, Any], dtype: Dtype, card: Card) -> Kernel:
    """The kernel that a record of constants describes, on a card's peak, multiprocessors and bandwidth."""
    peak, cores = card.peak(dtype), card.cores
    waves = [(*_sides(name), share) for name, share in found["tile_shares"].items()]
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


def _sides(name: str) -> tuple[int, int]:
    height, width = name.split("x")
    return int(height), int(width)


def _fitted(dtype: Dtype, card: Card) -> JsonObject:
    formats: JsonObject = constants()["cards"][_measured(dtype, card)]["formats"]
    name = "fp8" if dtype in ("fp8", "fp4") and card.fp8 else "bf16"
    return {**formats[name], "format": name}


def _measured(dtype: Dtype, card: Card) -> str:
    cards = constants()["cards"]
    own = next((name for name, entry in cards.items() if card.name in entry["options"]), None)
    found = own or next(name for least, name in _GENERATIONS if card.capability >= least)
    wide = dtype == beside_products(dtype) or not card.fp8
    return found if wide or "fp8" in cards[found]["formats"] else "H100-SXM-80GB"


@cache
def constants() -> JsonObject:
    """The content of ``gemm.json``."""
    content: JsonObject = json.loads(CONSTANTS.read_text())
    return content
