"""How many points a second `launch check --points` answers, and in how much memory: ``python -m benchmarks.points``.

The points are drawn, always the same ones, from models of 0.1 B to 671 B, every engine, precisions, batches, lengths,
worlds and GPUs: most are valid, about half of those do not fit and have their ways out searched, and some are invalid.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.reporting import keep, takes_no_option

POINTS = 3000

_MODELS = "125m 350m 1b 3b 7b 13b 30b 70b 175b llama3_8b llama3_70b qwen3_32b gpt2 gpt3_175b mixtral_8x7b deepseek_v3"
_CHOICES = {
    "model": _MODELS.split(),
    "hardware": ["a100_40g", "a100_80g", "h100_80g", "h200", "b200", "rtx4090", "l40s", "v100_32g"],
    "precision": ["bf16", "bf16", "bf16", "fp16", "fp32"],
    "checkpointing": ["none", "none", "selective", "full"],
    "optimizer": ["adamw", "adamw", "adamw", "sgd", "adamw_8bit"],
}
_VALUES = {
    "train.micro_batch_size": (1, 1, 2, 4, 8),
    "train.sequence_length": (512, 1024, 2048, 2048, 4096),
    "cluster.nodes": (1, 1, 2, 4, 8, 16, 32),
    "cluster.gpus_per_node": (1, 4, 8, 8, 8),
}
_SPLITS = {"tensor": (1, 2, 4, 8), "pipeline": (1, 2, 4, 8), "expert": (1, 2, 4)}
_PARALLEL = {
    "ddp": (),
    "fsdp": (),
    "hsdp": (),
    "zero1": (),
    "zero2": (),
    "zero3": (),
    "tp": ("tensor",),
    "pp": ("pipeline",),
    "tp_pp": ("tensor", "pipeline"),
    "3d": ("tensor", "pipeline"),
    "ep": ("expert",),
}
_ACCUMULATION = (None, None, 4, 64, 1024)


def overrides(draw: random.Random) -> list[str]:
    """One point: a choice of each group, sizes, and the degrees that belong to the preset, set or left."""
    preset = draw.choice(list(_PARALLEL))
    texts = [f"parallel={preset}", *(f"{group}={draw.choice(options)}" for group, options in _CHOICES.items())]
    texts += [f"{key}={draw.choice(values)}" for key, values in _VALUES.items()]
    texts += [f"parallel.{axis}={draw.choice(_SPLITS[axis])}" for axis in _PARALLEL[preset]]
    if total := draw.choice(_ACCUMULATION):
        texts.append(f"train.global_batch_size={total}")
    return texts


def points(seed: int = 0) -> Iterator[str]:
    """Lines for ``--points``, without end."""
    draw, number = random.Random(seed), 0
    while True:
        yield json.dumps({"id": number, "overrides": overrides(draw)})
        number += 1


def measured(count: int, folder: Path) -> dict[str, Any]:
    """Answer so many points in a process of its own: seconds to the first answer, points a second after it, memory."""
    path = folder / "points.jsonl"
    path.write_text("".join(f"{line}\n" for line in islice(points(), count)))
    command = [sys.executable, "-m", "launcher.cli", "check", "--points", str(path)]
    start, verdicts = time.perf_counter(), Counter[str]()
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None:
            raise AssertionError("a pipe was asked for")
        first = 0.0
        for line in process.stdout:
            first = first or time.perf_counter()
            verdicts[json.loads(line)["verdict"]] += 1
        last = time.perf_counter()
    return {
        "points": verdicts.total(),
        "verdicts": dict(sorted(verdicts.items())),
        "first_answer_s": first - start,
        "points_per_second": (verdicts.total() - 1) / (last - first),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
    }


def main() -> None:
    """Measure and keep."""
    with tempfile.TemporaryDirectory() as folder:
        keep("points", "python -m benchmarks.points", measured(POINTS, Path(folder)))


if __name__ == "__main__":
    takes_no_option(__doc__)
    main()
