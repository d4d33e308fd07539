"""Time of the grouped products of routed experts: the model of ``gemm`` over the tiles of all experts of a rank.

Each expert's rows start a new tile, so that it leaves half a tile empty on average, and every weight is read however
few tokens use it. ``grouped.json`` has the throughput of a grouped kernel relative to a single product's tiles on the
same card, measured on H100 and H800 (``python -m benchmarks.speed.fits.grouped --data DIR``). Routing counts as even.
"""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from launcher.base import files
from launcher.base.files import JsonObject
from launcher.estimate.speed import gemm
from launcher.estimate.speed.card import Card
from launcher.spec.values import Dtype

CONSTANTS = Path(__file__).with_name("grouped.json")


class Kernel(NamedTuple):
    """The constants of one card's grouped products in one format."""

    one: gemm.Kernel  # The constants of a single product, which give the tiles, the start and the sizes of elements.
    ratio: float  # Throughput of a wave relative to a single product's.
    depth: float  # Overhead of the loop over ``k``, in steps of ``k``.
    smooth: float  # Share of the last wave's idle time that is filled.
    byte: float  # Seconds per byte read or written.


@lru_cache(maxsize=16384)
def seconds(tokens_per_expert: float, experts: int, n: int, k: int, dtype: Dtype, card: Card) -> float:
    """Seconds of the products of all experts of a rank, each of ``(tokens, k)`` and ``(k, n)``; 0 if there are none."""
    if tokens_per_expert <= 0 or experts <= 0 or n <= 0 or k <= 0:
        return 0.0
    kernel = kernel_of(dtype, card)
    cast = kernel.one.byte * kernel.one.cast * tokens_per_expert * experts * k
    return kernel.one.start + kernel_seconds(tokens_per_expert, experts, n, k, kernel) + cast


def kernel_seconds(tokens: float, experts: int, n: int, k: int, kernel: Kernel) -> float:
    """Seconds of the work: ``max(least over tiles of waves x seconds of a wave / ratio, bytes / bandwidth)``.

    An expert has ``tokens / height + 1/2`` rows of tiles on average, and at least one.
    """
    one, smooth = kernel.one, kernel.smooth
    waves = []
    for height, width, wave in one.tiles:
        tiles = experts * max(1.0, tokens / height + 0.5) * -(-n // width)
        turns = (1 - smooth) * -(-tiles // one.cores) + smooth * tiles / one.cores if tiles > one.cores else 1.0
        waves.append(turns * wave)
    moved = experts * (one.operand * k * (n + tokens) + one.result * tokens * n)
    return max(min(waves) * (k + kernel.depth) / kernel.ratio, moved * kernel.byte)


@lru_cache(maxsize=256)
def kernel_of(dtype: Dtype, card: Card) -> Kernel:
    """The constants of a format on a card; a card without fp8 multiplies in bf16."""
    found = files.own_json(CONSTANTS)["formats"]["fp8" if dtype in ("fp8", "fp4") and card.fp8 else "bf16"]
    return kernel_from(found, gemm.kernel_of(dtype, card), card.memory_bandwidth)


def kernel_from(found: JsonObject, one: gemm.Kernel, memory_bandwidth: float) -> Kernel:
    """The kernel that a record of constants describes."""
    byte = 1 / (found["memory_share"] * memory_bandwidth)
    return Kernel(one=one, ratio=found["ratio"], depth=found["depth"], smooth=found["smooth"], byte=byte)
