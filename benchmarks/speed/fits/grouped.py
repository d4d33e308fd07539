"""Fit the constants of routed experts' grouped products (``launcher/estimate/speed/grouped.py``) to kernels."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.speed.fits.simplex import Vector, least
from benchmarks.speed.fits.tables import AICONFIGURATOR, INFERSIM, SILICON, card_of, read, residual, write
from launcher.estimate.speed import gemm, grouped
from launcher.spec.values import Dtype

_NARROWEST = 256
"""Columns of an expert's slice below which the kernel of the table loses most of its throughput."""

_WHAT = (
    "all experts of a rank: max(least over the tiles of one product of the card of waves x seconds of a wave x"
    " (k + depth) / ratio, bytes / (memory_share x bandwidth)), experts x max(1, tokens / height + 1/2) x ceil(n /"
    " width) tiles; table_start_seconds and table_passes are what the rows hold besides: starting, sorting and adding"
    " up (bytes of 2 for an element of every routed token); residuals are |predicted / measured - 1| by the shipped"
    " function, by_tokens those by the tokens of an expert; held_out: each quarter of the rows' models predicted from a"
    " fit to the other three"
)

type Rows = npt.NDArray[np.float64]
"""One row a measurement: tokens of an expert, experts, hidden size, size of an expert and seconds."""

type Form = Callable[[Vector, Rows], Vector]
"""Seconds of rows by the constants ratio, depth, memory share, smooth, start and passes."""


def main() -> int:
    """Fit both formats, print the residuals and write ``launcher/estimate/speed/grouped.json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.fits.grouped", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the tables of experts")
    data = parser.parse_args().data
    up, down = _fp8(data / "infersim_grouped_gemm_h800.csv")
    formats = {
        "bf16": {
            **AICONFIGURATOR,
            "table": "h100_sxm/moe/vllm/0.24.0 (Triton experts), balanced, without expert parallelism",
            **_fitted(Experts("H100-SXM-80GB", "bf16", both=True), _bf16(data / "moe_experts_h100.csv.gz")),
        },
        "fp8": {
            **INFERSIM,
            "table": "grouped_gemm of H800 (DeepGEMM)",
            **_fitted(Experts("H800-SXM", "fp8", both=False), np.concatenate([up, down])),
        },
    }
    path = write("grouped", {"what": _WHAT, "formats": formats})
    print(f"{path}: {path.stat().st_size} bytes")
    return 0


def _bf16(path: Path) -> Rows:
    """Balanced rows of one rank with all experts: with expert parallelism they hold other ranks' tokens, too."""
    kept = [
        row
        for row in read(path)
        if (row["dtype"], row["distribution"], row["ep"]) == ("bfloat16", "balanced", "1")
        and int(row["moe_ffn"]) // int(row["etp"]) >= _NARROWEST
    ]
    return np.array([
        [
            int(row["tokens"]) * int(row["topk"]) / int(row["experts"]),
            int(row["experts"]),
            int(row["hidden"]),
            int(row["moe_ffn"]) // int(row["etp"]),
            float(row["latency_ms"]) / 1e3,
        ]
        for row in kept
    ])


def _fp8(path: Path) -> tuple[Rows, Rows]:
    """The first product, of gate and up together, and the second one."""
    first, second = [], []
    for row in read(path):
        tokens, experts = int(row["tokens_per_expert"]), int(row["num_local_experts"])
        hidden, size = int(row["hidden_size"]), int(row["intermediate_size"])
        first.append([tokens, experts, hidden, 2 * size, float(row["up_proj_us"]) / 1e6])
        second.append([tokens, experts, size, hidden, float(row["down_proj_us"]) / 1e6])
    return np.array(first), np.array(second)


class Experts:
    """Grouped products of one card and format: both of an expert in a row, or one."""

    def __init__(self, gpu: str, dtype: Dtype, *, both: bool) -> None:
        """Take the tiles of one product as they are fitted."""
        self.bandwidth, self.both = SILICON[gpu].memory_bandwidth, both
        name = "h800" if gpu == "H800-SXM" else "h100_80g"
        self.one = gemm.kernel_of(dtype, card_of(gpu, name, capability=9.0))

    def predicted(self, constants: dict[str, float], rows: Rows) -> Vector:
        """What the shipped function says with these constants, with what the table's rows hold besides."""
        kernel = grouped.kernel_from(constants, self.one, self.bandwidth)
        found = []
        for tokens, experts, k, n, _ in rows:
            works = [(2 * n, k), (k, n)] if self.both else [(n, k)]
            products = sum(grouped.kernel_seconds(tokens, int(experts), int(a), int(b), kernel) for a, b in works)
            passes = 2 * constants["table_passes"] * tokens * experts * k * kernel.byte
            found.append(constants["table_start_seconds"] + products + passes)
        return np.array(found)

    def fit(self, rows: Rows) -> dict[str, float]:
        """The least mean of |log predicted / measured|; the 90th percentile counts a third."""

        def cost(point: Vector) -> float:
            if (point <= 0).any() or (point[[0, 2, 3]] > 1).any():
                return np.inf
            off = np.abs(np.log(self._form(point, rows) / rows[:, 4]))
            return float(np.minimum(off, 1).mean() + 0.3 * np.quantile(off, 0.9))

        starts = ((0.7, 100, 0.8, 0.5, 3e-5, 2), (0.6, 300, 0.7, 0.9, 6e-5, 4))
        point = least(cost, starts if self.both else [start[:-1] for start in starts])
        names = ("ratio", "depth", "memory_share", "smooth", "table_start_seconds", "table_passes")
        values = (float(f"{value:.4g}") for value in (*point, 0.0))
        return dict(zip(names, values, strict=False))

    def _form(self, point: Vector, rows: Rows) -> Vector:
        """``grouped.kernel_seconds`` over arrays, for the search alone."""
        ratio, depth, memory_share, smooth, start = point[:5]
        tokens, experts, k, n = rows[:, :4].T
        byte = 1 / (memory_share * self.bandwidth)
        whole: Vector = start + 2 * (point[5] if self.both else 0.0) * tokens * experts * k * byte
        for columns, steps in [(2 * n, k), (k, n)] if self.both else [(n, k)]:
            waves = []
            for high, wide, wave in self.one.tiles:
                tiles = experts * np.maximum(1, tokens / high + 0.5) * np.ceil(columns / wide)
                turns = (1 - smooth) * np.ceil(tiles / self.one.cores) + smooth * tiles / self.one.cores
                waves.append(np.where(tiles > self.one.cores, turns, 1) * wave)
            moved = experts * (self.one.operand * steps * (columns + tokens) + self.one.result * tokens * columns)
            whole = whole + np.maximum(np.min(waves, axis=0) * (steps + depth) / ratio, moved * byte)
        return whole


def _fitted(experts: Experts, rows: Rows) -> dict[str, Any]:
    constants = experts.fit(rows)
    predicted = experts.predicted(constants, rows)
    bins = {least_tokens: rows[:, 0] >= least_tokens for least_tokens in (0, 128, 512, 2048)}
    told = {
        "residual": residual(predicted, rows[:, 4]),
        "by_tokens": {f">= {low}": residual(predicted[these], rows[these, 4]) for low, these in bins.items()},
        "held_out": _held_out(experts, rows),
    }
    print(*(f"{name} {found}" for name, found in {**constants, **told}.items()), sep="\n  ")
    return {**constants, **told}


def _held_out(experts: Experts, rows: Rows) -> dict[str, Any]:
    models = np.unique(rows[:, 1:4], axis=0, return_inverse=True)[1].ravel()
    predicted = np.zeros(len(rows))
    for number in range(4):
        out = models % 4 == number
        predicted[out] = experts.predicted(experts.fit(rows[~out]), rows[out])
    return residual(predicted, rows[:, 4])


if __name__ == "__main__":
    raise SystemExit(main())
