"""A rank rehearsed alone beside the same rank of the real run over gloo: ``python -m benchmarks.rehearse``.

Every engine with 4 and 8 ranks: the real run of all ranks by ``launch run``, two steps of a small model, and the rank
that ``launch rehearse`` chooses, alone, through the same worker. The peak of each phase is compared. Gloo's own thread
at times lets go of a collective's tensors late, which adds them to a peak of the real run
(``worker.memory.live_bytes``), and nothing lowers one: a real run that differs by more than 1% is made again, at most
twice, and its lowest peaks count. At last a 7B model with few layers is rehearsed. Writes
``benchmarks/results/rehearse.json``, after each case, and leaves cases that are there from the same day.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.reporting import RESULTS, keep
from launcher.base import machine
from launcher.config.catalog import Catalog
from launcher.config.request import request
from launcher.preflight import assess
from launcher.rehearsing import choice, device, process
from launcher.rehearsing.choice import Request
from launcher.spec import RunSpec

COMMON = (
    "model=tiny",
    "model.num_hidden_layers=8",
    "model.num_attention_heads=8",
    "model.num_key_value_heads=8",
    "data=synthetic",
    "hardware=cpu",
    "train.sequence_length=128",
    "train.micro_batch_size=1",
    "train.steps=2",
    "save.last=false",
)
BUCKETS = ("zero.reduce_bucket_size=1000000",)
"""DeepSpeed's own of half a billion elements is a gigabyte on each rank."""

PLAIN = ("parallel=tp", "parallel.tensor=1", "parallel.sequence=false", "zero=0")
EXPERTS = (
    *("model.family=moe", "model.num_experts=4", "model.num_experts_per_tok=2", "model.moe_intermediate_size=96"),
    *("model.max_position_embeddings=1024", "train.sequence_length=1024"),
)
"""Enough tokens that chance sends nearly as many to each expert: the rehearsed rank gets an equal share."""

ENGINES: Mapping[str, tuple[str, ...]] = {
    "fsdp": ("parallel=fsdp",),
    "ddp": ("parallel=ddp",),
    "fsdp pipeline": ("parallel=fsdp_pp", "parallel.pipeline=4", "train.gradient_accumulation=4"),
    "zero1": ("parallel=zero1", *BUCKETS),
    "zero2": ("parallel=zero2", *BUCKETS),
    "zero3": ("parallel=zero3", *BUCKETS),
    "megatron tensor": (*PLAIN, "parallel.tensor=4"),
    "megatron pipeline": (*PLAIN, "parallel.pipeline=4", "train.gradient_accumulation=4"),
    "megatron experts": (*PLAIN, *EXPERTS, "parallel.expert=2", "zero=1"),
}
SEVEN = (
    *("model=llama2_7b", "model.num_hidden_layers=2", "parallel=fsdp", "precision=fp32", "hardware=cpu"),
    *("cluster.gpus_per_node=8", "train.micro_batch_size=1", "train.sequence_length=16", "data=synthetic"),
)
TOLERANCE = 0.01
ATTEMPTS = 3

_SECONDS = 1800.0
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def main() -> None:
    """Measure what is asked for, and keep it after each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, choices=(4, 8), action="append", help="ranks of the runs (default: both)")
    options = parser.parse_args()
    figures = _kept()
    for ranks in options.ranks or (4, 8):
        for name, words in ENGINES.items():
            case = f"{name}, {ranks} ranks"
            if case not in figures["cases"]:
                figures["cases"][case] = _measured((*COMMON, *words), ranks)
                _keep(figures)
    if "seven" not in figures:
        figures["seven"] = _seven()
        _keep(figures)
    print(json.dumps(figures, indent=1))


def _kept() -> dict[str, Any]:
    """Write the figures so far, since a benchmark of half an hour may be interrupted."""
    path = RESULTS / "rehearse.json"
    content = json.loads(path.read_text()) if path.exists() else {}
    return content["figures"] if content.get("date") == time.strftime("%Y-%m-%d") else {"worst": None, "cases": {}}


def _keep(figures: dict[str, Any]) -> None:
    figures["worst"] = max(case["worst"] for case in figures["cases"].values())
    keep("rehearse", "python -m benchmarks.rehearse", figures, printed=False)


def _measured(words: tuple[str, ...], ranks: int) -> dict[str, Any]:
    """The peaks of the rank that would be rehearsed, by phase: alone, and in the real run."""
    words = (*words, f"cluster.gpus_per_node={ranks}")
    spec = _spec(words)
    [rank] = choice.ranks(spec, assess.estimated(spec), Request())
    with tempfile.TemporaryDirectory() as folder:
        alone = _alone(spec, rank, Path(folder) / "alone")
        real: dict[str, int] = {}
        for attempt in range(1, ATTEMPTS + 1):
            peaks = _real(words, rank, Path(folder) / f"real{attempt}")
            real = {phase: min(peak, real.get(phase, peak)) for phase, peak in peaks.items()}
            errors = {phase: alone[phase] / peak - 1 for phase, peak in real.items() if phase in alone}
            worst = max(map(abs, errors.values()))
            if worst <= TOLERANCE:
                break
    found = {"overrides": list(words), "rank": rank, "real": real, "alone": alone, "errors": errors}
    print(f"{' '.join(words[len(COMMON) :])}: {worst:.2%}, {attempt} real runs", flush=True)
    return {**found, "worst": worst, "real_runs": attempt}


def _spec(words: tuple[str, ...]) -> RunSpec:
    return request(words, facts=machine.facts(), catalog=Catalog(folder=Path(__file__).parent)).require()


def _alone(spec: RunSpec, rank: int, folder: Path) -> dict[str, int]:
    ready = device.fitted(spec, device.here())
    found = process.rehearse(ready, rank, steps=2, folder=folder, seconds=_SECONDS, environment=_ONE_THREAD)
    return {phase: peak.allocated_bytes for phase, peak in found.phases.items()}


def _real(words: tuple[str, ...], rank: int, folder: Path) -> dict[str, int]:
    folder.mkdir()
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "-m", "launcher", "run", *words, "run.name=real", "--json", "--no-native"]
    subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
    content = json.loads((folder / "runs" / "real" / "memory.json").read_text())
    entry = next(entry for entry in content["ranks"] if entry["rank"] == rank)
    return {phase: peak for phase, peak in entry["phases"].items() if peak is not None}


def _seven() -> dict[str, Any]:
    """A 7B model with few layers on this processor: its peaks beside the estimate, and the time."""
    spec = _spec(SEVEN)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        alone = _alone(spec, 0, Path(folder) / "alone")
    return {
        "overrides": list(SEVEN),
        "predicted": dict(assess.estimated(spec).phases),
        "measured": alone,
        "seconds": round(time.monotonic() - began),
    }


if __name__ == "__main__":
    main()
