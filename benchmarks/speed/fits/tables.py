"""Measured tables of kernels: where they are from, how a fit's residuals are told and how its file is written."""

from __future__ import annotations

import csv
import gzip
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from launcher.estimate.speed import gemm
from launcher.estimate.speed.card import Card
from launcher.rundir.provenance import versions

AICONFIGURATOR = {
    "source": "ai-dynamo/aiconfigurator, systems/data",
    "source_commit": "095f58a5",
    "licence": "Apache-2.0",
}
INFERSIM = {"source": "alibaba/InferSim, bench_data", "source_commit": "f2293dab", "licence": "Apache-2.0"}

SPEED = Path(gemm.__file__).parent
"""The package's folder, where the fitted constants lie beside the formula that reads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silicon:
    """A measured card as its maker states it: dense FLOP/s of bf16 and fp8, bytes/s, multiprocessors."""

    bf16: float
    fp8: float | None
    memory_bandwidth: float
    cores: int


SILICON = {
    "A100-SXM-80GB": Silicon(bf16=312e12, fp8=None, memory_bandwidth=2039e9, cores=108),
    "H100-SXM-80GB": Silicon(bf16=989.4e12, fp8=1978.9e12, memory_bandwidth=3352e9, cores=132),
    "H200-SXM": Silicon(bf16=989.4e12, fp8=1978.9e12, memory_bandwidth=4800e9, cores=132),
    "H800-SXM": Silicon(bf16=989.4e12, fp8=1978.9e12, memory_bandwidth=3352e9, cores=132),
    "B200-SXM": Silicon(bf16=2250e12, fp8=4500e12, memory_bandwidth=8000e9, cores=148),
    "B300-SXM": Silicon(bf16=2250e12, fp8=4500e12, memory_bandwidth=8000e9, cores=148),
    "GB200": Silicon(bf16=2500e12, fp8=5000e12, memory_bandwidth=8000e9, cores=152),
    "GB300": Silicon(bf16=2500e12, fp8=5000e12, memory_bandwidth=8000e9, cores=152),
    "L40S": Silicon(bf16=362.05e12, fp8=733e12, memory_bandwidth=864e9, cores=142),
    "RTX-PRO-6000": Silicon(bf16=503.8e12, fp8=1007.6e12, memory_bandwidth=1597e9, cores=188),
}
"""By the makers' datasheets, as ``conf/hardware`` has them; a fitted share is of this peak."""


def card_of(gpu: str, name: str, capability: float = 0.0) -> Card:
    """The measured card as the shipped functions take it; fp32 and the host's link are not asked for."""
    found = SILICON[gpu]
    return Card(
        name=name,
        capability=capability,
        cores=found.cores,
        fp32=found.bf16,
        fp16=found.bf16,
        bf16=found.bf16,
        fp8=found.fp8,
        memory_bandwidth=found.memory_bandwidth,
        pcie_bandwidth=1.0,
    )


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a table, compressed or not."""
    if path.suffix == ".gz":
        with gzip.open(path, "rt") as stream:
            return list(csv.DictReader(stream))
    with path.open() as stream:
        return list(csv.DictReader(stream))


def residual(predicted: npt.NDArray[np.float64], measured: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Median and 90th percentile of |predicted / measured - 1|, and the rows that they are of."""
    off = np.abs(predicted / measured - 1)
    return {
        "rows": len(off),
        "median": round(float(np.median(off)), 4),
        "p90": round(float(np.quantile(off, 0.9)), 4),
    }


def by_gflop(
    predicted: npt.NDArray[np.float64], measured: npt.NDArray[np.float64], flops: npt.NDArray[np.float64]
) -> Iterable[str]:
    """The same by the power of four GFLOP of a product, one word each: ``GFLOP:median/p90``."""
    bins = np.round(np.log2(flops / 1e9) / 2)
    for power in np.unique(bins):
        these = bins == power
        found = residual(predicted[these], measured[these])
        yield f"{4.0**power:g}:{found['median']:.1%}/{found['p90']:.1%}"


def write(name: str, content: Mapping[str, Any]) -> Path:
    """Write a file of constants into the package with the commit and the date that made it."""
    path = SPEED / f"{name}.json"
    made = {
        "command": f"python -m benchmarks.speed.fits.{name} --data DIR",
        "date": time.strftime("%Y-%m-%d"),
        "commit": versions()["git"]["commit"],
    }
    path.write_text(json.dumps({**made, **content}, indent=1) + "\n")
    return path
