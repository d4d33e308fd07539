"""Invented rows of the file of measured runs, for FSDP on H100s; no GPU was used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.estimate.speed import calibration
from launcher.preflight.measured import file
from launcher.preflight.measured.file import MeasuredRun, PredictedRun, Row
from launcher.preflight.measured.known import place
from tests.support.helpers import composed_once
from tests.support.rule_cases import NODE

RUN = ("model=7b", "parallel=fsdp", *NODE)
"""The run of the rows, without its layout."""


def row(number: int = 0, ratio: float = 0.9, **changed: Any) -> Row:
    """A row whose measured speed is a multiple of the uncorrected prediction; each number is another layout."""
    hardware, network = composed_once(*RUN).hardware, composed_once(*RUN).cluster
    found = Row(
        id=f"run-{number}",
        directory=f"/home/me/runs/run-{number}",
        date=f"2026-11-{number % 28 + 1:02d}T12:00:00Z",
        hardware="h100_80g",
        title="NVIDIA H100 80GB HBM3",
        device="cuda",
        nodes=1,
        gpus=8,
        cluster="local",
        link_bandwidth=hardware.link_bandwidth,
        network_bandwidth=hardware.network_bandwidth,
        network_latency=network.network_latency,
        framework="PyTorch FSDP",
        versions={"torch": "2.9.0"},
        calibration=calibration.version(),
        spec_hash="0123456789ab",
        model="7b",
        experts=False,
        layout=f"7b fsdp bf16, data 8, micro-batch {number + 1}",
        predicted=PredictedRun(tokens_per_second_per_gpu=9500.0, uncorrected=10000.0, allocated_bytes=50 * 2**30),
        measured=MeasuredRun(tokens_per_second_per_gpu=10000.0 * ratio, steps=50, allocated_bytes=49 * 2**30),
    )
    return replace(found, **changed)


def users_own() -> Path:
    """The user's own file of measured runs."""
    return place(composed_once(*RUN).cluster)


def written(path: Path, *rows: Row) -> Path:
    """Write a file of rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for each in rows:
        file.add(path, each)
    return path
