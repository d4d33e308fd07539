"""Fit the constants of fused attention (``launcher/estimate/speed/attention.py``) to the kernels of three cards."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.speed.fits.simplex import Vector, least
from benchmarks.speed.fits.tables import AICONFIGURATOR, SILICON, read, residual, write
from launcher.estimate.speed import attention, gemm

_OPTIONS = {
    "A100-SXM-80GB": ["a100_40g", "a100_80g", "a100_pcie_80g", "a800"],
    "H100-SXM-80GB": ["h100_80g", "h100_96g", "h800", "gh200", "h200"],
    "B200-SXM": ["b200", "gb200"],
}
"""The options of ``conf/hardware`` with this card's silicon; H200 is an H100 with more memory."""

_NAMES = ("start_seconds", "share", "tail", "memory_share")
_STARTS = ((8e-6, 0.6, 0.3, 0.6), (2e-5, 0.7, 1.0, 0.4))

_WHAT = (
    "causal forward pass: start_seconds + 2 x cores x (head size of keys + of values) / (share x peak) x (pairs / cores"
    " + tail x 128 x keys) + bytes of queries, keys, values and outputs / (memory_share x bandwidth); pairs = batch x"
    " heads x queries x keys / 2; best_product: the largest tile share of the card's products; residuals are |predicted"
    " / measured - 1| by the shipped function: residual (all rows), training (2,048 tokens and more, 8 to 256 heads x"
    " sequences), held_out (each quarter of the pairs of heads and sequence length predicted from a fit to the others)"
)

type Rows = npt.NDArray[np.float64]
"""One row a measurement: batch, heads, heads of keys, sequence length and seconds."""


def main() -> int:
    """Fit every card and head size, print the residuals and write ``launcher/estimate/speed/attention.json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.fits.attention", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder with attention_forward.csv.gz")
    found = read(parser.parse_args().data / "attention_forward.csv.gz")
    products = {name: entry["formats"]["bf16"] for name, entry in gemm.CONSTANTS.cards.items()}
    cards = {
        gpu: {
            "options": options,
            "table": next(f"{row['source']} ({row['kernel']})" for row in found if row["gpu"] == gpu),
            "best_product": max(products[gpu]["tile_shares"].values()),
            "heads": {size: _fitted(gpu, size, rows) for size, rows in _tables(found, gpu).items()},
        }
        for gpu, options in _OPTIONS.items()
    }
    path = write("attention", {"what": _WHAT, **AICONFIGURATOR, "cards": cards})
    print(f"{path}: {path.stat().st_size} bytes")
    return 0


def _tables(found: Sequence[Mapping[str, str]], gpu: str) -> dict[int, Rows]:
    """The rows of a card by the size of a head."""
    rows: dict[int, list[list[float]]] = {}
    for row in found:
        if row["gpu"] == gpu:
            numbers = [float(row[name]) for name in ("batch", "heads", "kv_heads", "seq")]
            rows.setdefault(int(row["head_dim"]), []).append([*numbers, float(row["latency_ms"]) / 1e3])
    return {size: np.array(rows[size]) for size in sorted(rows)}


def _fitted(gpu: str, size: int, rows: Rows) -> dict[str, Any]:
    constants = _fit(gpu, size, rows)
    predicted = _predicted(constants, gpu, size, rows)
    at_once = rows[:, 0] * rows[:, 1]
    training = (rows[:, 3] >= 2048) & (at_once >= 8) & (at_once <= 256)
    told = {
        "residual": residual(predicted, rows[:, 4]),
        "training": residual(predicted[training], rows[training, 4]),
        "held_out": _held_out(gpu, size, rows),
    }
    print(gpu, size, *(f"{name} {found}" for name, found in told.items()))
    return {**constants, **told}


def _held_out(gpu: str, size: int, rows: Rows) -> dict[str, Any]:
    quarter = (np.unique(rows[:, 1], return_inverse=True)[1] + 2 * np.unique(rows[:, 3], return_inverse=True)[1]) % 4
    predicted = np.zeros(len(rows))
    for number in range(4):
        out = quarter == number
        predicted[out] = _predicted(_fit(gpu, size, rows[~out]), gpu, size, rows[out])
    return residual(predicted, rows[:, 4])


def _fit(gpu: str, size: int, rows: Rows) -> dict[str, float]:
    """The least mean of |log predicted / measured|; the 90th percentile counts a third, long sequences twice."""
    weights = np.where(rows[:, 3] >= 2048, 2.0, 1.0)

    def cost(point: Vector) -> float:
        if (point <= 0).any() or point[1] > 1 or point[3] > 1:
            return np.inf
        off = np.abs(np.log(_form(point, gpu, size, rows) / rows[:, 4]))
        return float((weights * np.minimum(off, 1)).sum() / weights.sum() + 0.3 * np.quantile(off, 0.9))

    point = least(cost, _STARTS)
    return {name: float(f"{value:.4g}") for name, value in zip(_NAMES, point, strict=True)}


def _form(point: Vector, gpu: str, size: int, rows: Rows) -> Vector:
    """``attention.kernel_seconds`` over arrays, for the search alone."""
    silicon = SILICON[gpu]
    start, share, tail, memory_share = point
    batch, heads, kv_heads, tokens = rows[:, :4].T
    blocks = batch * heads * tokens**2 / 2 / silicon.cores + tail * 128 * tokens
    moved = 4 * size * batch * tokens * (heads + kv_heads)
    found: Vector = (
        start
        + 4 * size * silicon.cores / (share * silicon.bf16) * blocks
        + moved / (memory_share * silicon.memory_bandwidth)
    )
    return found


def _predicted(constants: Mapping[str, float], gpu: str, size: int, rows: Rows) -> Vector:
    """The shipped function's prediction with these constants."""
    silicon = SILICON[gpu]
    kernel = attention.kernel_from(constants, silicon.bf16, silicon.memory_bandwidth, silicon.cores)
    found: Vector = np.array([
        attention.kernel_seconds(
            attention.Sizes(int(batch), int(heads), int(kv_heads), int(tokens), int(tokens), size, size, True),
            silicon.cores,
            kernel,
        )
        for batch, heads, kv_heads, tokens in rows[:, :4]
    ])
    return found


if __name__ == "__main__":
    raise SystemExit(main())
