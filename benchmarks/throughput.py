"""Tokens per second of our workers against a plain loop of the same framework and model.

``python -m benchmarks.throughput``. The two alternate, so that a slowdown of the machine affects both; the
figure is the median of the pairwise ratios.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.plain.common import SEQUENCE, STEPS
from benchmarks.reporting import keep, takes_no_option

PAIRS = 5
PRESETS = {"fsdp": "fsdp", "deepspeed": "zero2"}


def main() -> None:
    """Measure and write the result."""
    figures = {}
    with tempfile.TemporaryDirectory() as name:
        for engine, preset in PRESETS.items():
            pairs = [(_plain(engine), _worker(preset, Path(name), n)) for n in range(PAIRS)]
            figures[engine] = {
                "plain_tokens_per_second": statistics.median(plain for plain, _ in pairs),
                "worker_tokens_per_second": statistics.median(worker for _, worker in pairs),
                "ratio_median_of_pairs": statistics.median(worker / plain for plain, worker in pairs),
                "ratios": [worker / plain for plain, worker in pairs],
            }
    keep("throughput", "python -m benchmarks.throughput", figures)


def _plain(engine: str) -> float:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "--"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*torchrun, f"benchmarks.plain.{engine}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return float(done.stdout.strip().splitlines()[-1])


def _worker(preset: str, folder: Path, number: int) -> float:
    """Our worker on the same sizes; the second half of its steps, as the plain loop counts."""
    launch = str(Path(sys.executable).with_name("launch"))
    words = [f"parallel={preset}", "model=tiny", "precision=bf16", "data=synthetic", "save.last=false"]
    words += [f"train.steps={STEPS}", f"train.sequence_length={SEQUENCE}", f"run.name={preset}{number}"]
    done = subprocess.run([launch, "--json", *words], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    run = Path(json.loads(done.stdout)["run"]["directory"])
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    half = rows[STEPS // 2 :]
    tokens = 2 * SEQUENCE * len(half)
    return tokens / float(sum(row["step_seconds"] for row in half))


if __name__ == "__main__":
    takes_no_option(__doc__)
    main()
