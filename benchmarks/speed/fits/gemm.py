"""Fit the constants of matrix products (``launcher/estimate/speed/gemm.py``) to the measured ones of each card."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.speed.fits.simplex import Vector, least
from benchmarks.speed.fits.tables import AICONFIGURATOR, SILICON, by_gflop, card_of, read, residual, write
from launcher.estimate.speed import gemm
from launcher.spec.values import Dtype

_TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128), (256, 256))
_AREAS = (4096, 8192, 16384, 32768, 65536)

_STARTS = (
    (2e-6, 0.8, 200, 500, 0.3, 0.65, 0.75, 0.85, 0.85, 0.8),
    (4e-6, 0.7, 100, 500, 0.1, 0.65, 0.65, 0.7, 0.75, 0.75),
)
"""Start, share of the bandwidth, depth, depth of a split, smoothing, shares of the peak by the tile's area."""

_FP8_STARTS = ((8e-6, 300, 500, 0.5, 0.9, 6, 7e-9), (6e-6, 800, 500, 0.5, 1, 4, 3e-9))
"""Start, depth, depth of a split, smoothing, shares relative to bf16's, bytes an element and seconds a row to quantise.

The table's products in fp8 follow a kernel that quantises the rows of their first operand, one block of threads a row:
it takes its own time, which is fitted beside the product's, but is not what training libraries run.
"""

_OPTIONS = {
    "A100-SXM-80GB": ["a100_40g", "a100_80g", "a100_pcie_80g", "a800"],
    "H100-SXM-80GB": ["h100_80g", "h100_96g", "h800", "gh200"],
    "H200-SXM": ["h200"],
    "B200-SXM": ["b200"],
    "B300-SXM": ["b300"],
    "GB200": ["gb200"],
    "GB300": ["gb300"],
    "L40S": ["l40s"],
    "RTX-PRO-6000": ["rtx_pro_6000"],
}
"""The options of ``conf/hardware`` with this card's silicon; memory and links, where they differ, are their own."""

_THROTTLED = {"GB200": 5e11}
"""FLOPs of a product above which a card's table was measured at fallen clocks.

Of GB200 the median share of the peak falls from .72 at 512 GFLOP to .43 at 2,048 and is back at .62 at 65,536: no
property of the shapes. How clocks fall in a long run is a constant of its own and no part of this fit.
"""

_LEFT_OUT = {
    "vllm_default": (
        "a second table of A100 whose best products reach .96 of the peak, where searches for the best shape find .87"
        " (stas00/ml-engineering, compute/accelerator) and the table that is taken stops at .80"
    )
}

_WHAT = (
    "time of one matrix product: start_seconds + max(least over tiles of waves x 2 x cores x height x width x"
    " (k + depth) / (share x peak), bytes / (memory_share x bandwidth)); waves = ceil(tiles / cores), of which smooth"
    " is not rounded; with 2 x tiles of 128x128 <= cores also k split over cores // tiles, with split_depth more and"
    " split_share of the peak; table_quantise: the quantising kernel that the rows of fp8 hold besides, max(m x"
    " row_seconds, bytes x m x k / (memory_share x bandwidth)); residuals are |predicted / measured - 1| by the shipped"
    " function over m, n, k >= 256: residual (all rows), training (m, n, k >= 1,024), held_out (each quarter of the"
    " pairs of n and k predicted from a fit to the other three)"
)

type Rows = npt.NDArray[np.float64]
"""One row a product: m, n, k and seconds."""


def main() -> int:
    """Fit every card and format, print the residuals and write ``launcher/estimate/speed/gemm.json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.fits.gemm", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder with gemm.csv.gz")
    data = parser.parse_args().data
    found = tables(read(data / "gemm.csv.gz"))
    cards: dict[str, Any] = {}
    for (gpu, dtype), (rows, source) in found.items():
        formats = cards.setdefault(gpu, {"options": _OPTIONS[gpu], "formats": {}})["formats"]
        formats[dtype] = {"table": source, **_fitted(Fit(gpu, formats.get("bf16")), rows)}
    for entry in cards.values():
        entry["formats"]["bf16"].pop("shares")
    other = _other_tables(data, cards)
    path = write(
        "gemm", {"what": _WHAT, **AICONFIGURATOR, "left_out": _LEFT_OUT, "other_tables": other, "cards": cards}
    )
    print(f"{path}: {path.stat().st_size} bytes")
    return 0 if cards else 1


def _other_tables(data: Path, cards: Mapping[str, Any]) -> dict[str, Any]:
    """The constants against tables that they were not fitted to: a second one of A100, block-scaled fp8 of H800."""
    a100 = [row for row in read(data / "gemm.csv.gz") if row["kernel"] in _LEFT_OUT]
    h800 = [row for row in read(data / "infersim_gemm_fp8_h800.csv") if min(int(row[name]) for name in "mnk") >= 256]
    found = {
        "A100-SXM-80GB bf16, vllm_default": _checked("A100-SXM-80GB", None, cards, a100, "latency_ms", 1e3),
        "H800 fp8, DeepGEMM (alibaba/InferSim@f2293dab, Apache-2.0), without quantising": _checked(
            "H100-SXM-80GB", cards["H100-SXM-80GB"]["formats"]["bf16"], cards, h800, "latency_us", 1e6
        ),
    }
    print(*(f"{name}: {told}" for name, told in found.items()), sep="\n")
    return found


def _checked(
    gpu: str,
    bf16: Mapping[str, Any] | None,
    cards: Mapping[str, Any],
    found: Iterable[Mapping[str, str]],
    column: str,
    scale: float,
) -> dict[str, Any]:
    fit = Fit(gpu, bf16)
    rows = np.array([[*(float(row[name]) for name in "mnk"), float(row[column]) / scale] for row in found])
    constants = {**cards[gpu]["formats"][fit.dtype], "table_quantise": None}
    return residual(fit.predicted(constants, rows), rows[:, 3])


def tables(found: Iterable[Mapping[str, str]]) -> dict[tuple[str, Dtype], tuple[Rows, str]]:
    """The rows of each card and format, bf16 first."""
    rows: dict[tuple[str, Dtype], list[list[float]]] = {}
    sources: dict[tuple[str, Dtype], str] = {}
    for row in found:
        if row["kernel"] not in _LEFT_OUT:
            dtype: Dtype = "fp8" if row["dtype"] == "fp8" else "bf16"
            key = (row["gpu"], dtype)
            sources[key] = f"{row['source']} ({row['kernel']})"
            rows.setdefault(key, []).append([*(float(row[name]) for name in "mnk"), float(row["latency_ms"]) / 1e3])
    return {key: (np.array(rows[key]), sources[key]) for key in sorted(rows)}


class Fit:
    """One card in bf16, or in fp8 on top of its constants of bf16."""

    def __init__(self, gpu: str, bf16: Mapping[str, Any] | None) -> None:
        """Take a card by its name in the table; with constants of bf16 the fit is one of fp8."""
        self.gpu, self.silicon, self.bf16 = gpu, SILICON[gpu], bf16
        self.dtype: Dtype = "fp8" if bf16 else "bf16"

    def record(self, rows: Rows) -> dict[str, Any]:
        """The constants with the least mean of |log predicted / measured|.

        The 90th percentile counts a third, and rows of 1,024 tokens and more twice.
        """
        weights = np.where(rows[:, 0] >= 1024, 2.0, 1.0)

        def cost(point: Vector) -> float:
            whole = self._whole(point)
            if (point <= 0).any() or (whole[[1, *range(4, 10)]] > 1).any():
                return np.inf
            off = np.abs(np.log(self._form(whole, rows) / rows[:, 3]))
            return float((weights * np.minimum(off, 1)).sum() / weights.sum() + 0.3 * np.quantile(off, 0.9))

        return self._constants(self._whole(least(cost, _FP8_STARTS if self.bf16 else _STARTS)), rows)

    def predicted(self, constants: Mapping[str, Any], rows: Rows) -> Vector:
        """The shipped function's seconds with these constants, the table's quantising added."""
        kernel = gemm.kernel_from(constants, self.dtype, card_of(self.gpu, self.gpu))._replace(cast=0)
        found: Vector = np.array([gemm.kernel_seconds(int(m), int(n), int(k), kernel) for m, n, k in rows[:, :3]])
        quantise = constants.get("table_quantise")
        if quantise is None:
            return found
        m, k = rows[:, 0], rows[:, 2]
        both: Vector = found + m * np.maximum(quantise["row_seconds"], quantise["bytes"] * kernel.byte * k)
        return both

    def _whole(self, point: Vector) -> Vector:
        if self.bf16 is None:
            return np.array([*point, 0, 0])
        start, depth, split_depth, smooth, ratio, byte, row = point
        shares = [ratio * share for share in self.bf16["shares"]]
        return np.array([start, self.bf16["memory_share"], depth, split_depth, smooth, *shares, byte, row])

    def _form(self, whole: Vector, rows: Rows) -> Vector:
        """``gemm.kernel_seconds`` over arrays, for the search alone."""
        m, n, k = rows[:, 0], rows[:, 1], rows[:, 2]
        start, memory_share, depth, split_depth = whole[:4]
        waves = self._waves(whole, rows)
        best = np.min(waves, axis=0) * (k + depth)
        cores, tiles = self.silicon.cores, np.ceil(m / 128) * np.ceil(n / 128)
        wave = 2 * cores * 128 * 128 / (self._peak * whole[5 + _AREAS.index(128 * 128)])
        split = wave * (k / np.maximum(cores // tiles, 1) + depth + split_depth)
        best = np.where(2 * tiles <= cores, np.minimum(best, split), best)
        bandwidth = memory_share * self.silicon.memory_bandwidth
        moved = ((1 if self.bf16 else 2) * k * (m + n) + 2 * m * n) / bandwidth
        found: Vector = start + np.maximum(best, moved) + m * np.maximum(whole[11], whole[10] * k / bandwidth)
        return found

    def _waves(self, whole: Vector, rows: Rows) -> list[Vector]:
        """Seconds of all waves for a step of ``k``, by tile."""
        cores, smooth, found = self.silicon.cores, whole[4], []
        for high, wide in _TILES:
            tiles = np.ceil(rows[:, 0] / high) * np.ceil(rows[:, 1] / wide)
            waves = np.where(tiles > cores, (1 - smooth) * np.ceil(tiles / cores) + smooth * tiles / cores, 1)
            found.append(waves * 2 * cores * high * wide / (self._peak * whole[5 + _AREAS.index(high * wide)]))
        return found

    @property
    def _peak(self) -> float:
        return (self.silicon.fp8 or 0.0) if self.bf16 else self.silicon.bf16

    def _constants(self, whole: Vector, rows: Rows) -> dict[str, Any]:
        """The record of the package: without the tiles that are never the fastest of a measured product.

        All measured sizes are multiples of 256, so that a tile and its mirror image tie: both stay.
        """
        values = [float(f"{value:.4g}") for value in whole]
        fastest = {math.prod(_TILES[number]) for number in np.argmin(self._waves(whole, rows), axis=0)}
        shares = {
            f"{high}x{wide}": values[5 + _AREAS.index(high * wide)] for high, wide in _TILES if high * wide in fastest
        }
        names = ("start_seconds", "memory_share", "depth", "split_depth", "smooth")
        found = {**dict(zip(names, values, strict=False)), "tile_shares": shares, "split_share": values[7]}
        if self.bf16:
            return {**found, "table_quantise": {"bytes": values[10], "row_seconds": values[11]}}
        return {**found, "shares": values[5:10]}


def _fitted(fit: Fit, rows: Rows) -> dict[str, Any]:
    flops = 2 * rows[:, 0] * rows[:, 1] * rows[:, 2]
    kept = flops < _THROTTLED.get(fit.gpu, np.inf)
    rows, flops = rows[kept], flops[kept]
    constants = fit.record(rows)
    predicted = fit.predicted(constants, rows)
    training = rows[:, :3].min(axis=1) >= 1024
    told = {
        "residual": residual(predicted, rows[:, 3]),
        "training": residual(predicted[training], rows[training, 3]),
        "held_out": _held_out(fit, rows),
    }
    print(fit.gpu, fit.dtype, *(f"{name} {found}" for name, found in told.items()))
    print("  by GFLOP", *by_gflop(predicted, rows[:, 3], flops))
    return {**constants, **told}


def _held_out(fit: Fit, rows: Rows) -> dict[str, Any]:
    """Every quarter of the pairs of n and k predicted from a fit to the others."""
    quarter = (np.unique(rows[:, 1], return_inverse=True)[1] + 2 * np.unique(rows[:, 2], return_inverse=True)[1]) % 4
    predicted = np.zeros(len(rows))
    for number in range(4):
        out = quarter == number
        predicted[out] = fit.predicted(fit.record(rows[~out]), rows[out])
    return residual(predicted, rows[:, 3])


if __name__ == "__main__":
    raise SystemExit(main())
