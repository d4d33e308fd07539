"""Points per second of `launch check --points`, and its memory: ``python -m benchmarks.points``.

The points are drawn with a fixed seed from models of 0.1 B to 671 B, every engine, precisions, batches, lengths, worlds
and GPUs: most are valid, about half of those do not fit and need a search for ways out, and some are invalid. ``grid``
has points in a planner's order, all valid and next to their neighbors: 1,220 of the 2,400 combinations of :data:`_GRID`
on nodes of eight H100, drawn once and in the grid's order. More than half of these do not fit, so most of their time is
the search for ways out; ``estimates`` excludes it.
"""

from __future__ import annotations

import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any

from benchmarks.reporting import keep, takes_no_option
from launcher.base import machine
from launcher.config.catalog import Catalog
from launcher.config.request import request
from launcher.estimate.memory.estimate import estimate as memory_estimate
from launcher.estimate.speed.estimate import estimate as speed_estimate
from launcher.preflight.assess import parts

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
_GRID: dict[str, Sequence[object]] = {
    "model": ["llama3_1b", "llama3_8b", "qwen3_8b", "llama3_70b"],
    "parallel": ["fsdp", "zero1", "zero2", "zero3", "ddp"],
    "checkpointing": ["none", "full"],
    "train.micro_batch_size": [1, 2, 4, 8],
    "train.sequence_length": [2048, 4096, 8192],
    "cluster.nodes": [1, 2, 4, 8, 16],
}
_OF_GRID = 1220
_NODE = ("hardware=h100_80g", "cluster.gpus_per_node=8")

_ACCUMULATION = (None, None, 4, 64, 1024)


def overrides(draw: random.Random) -> list[str]:
    """Overrides of one random point: a choice for each group, sizes, and the preset's degrees."""
    preset = draw.choice(list(_PARALLEL))
    texts = [f"parallel={preset}", *(f"{group}={draw.choice(options)}" for group, options in _CHOICES.items())]
    texts += [f"{key}={draw.choice(values)}" for key, values in _VALUES.items()]
    texts += [f"parallel.{axis}={draw.choice(_SPLITS[axis])}" for axis in _PARALLEL[preset]]
    if total := draw.choice(_ACCUMULATION):
        texts.append(f"train.global_batch_size={total}")
    return texts


def points(seed: int = 0) -> Iterator[str]:
    """Yield lines for ``--points`` forever."""
    draw, number = random.Random(seed), 0
    while True:
        yield json.dumps({"id": number, "overrides": overrides(draw)})
        number += 1


def grid(seed: int = 0) -> Iterator[str]:
    """The lines of the grid's points."""
    every = list(product(*_GRID.values()))
    for number in sorted(random.Random(seed).sample(range(len(every)), _OF_GRID)):
        texts = [f"{key}={value}" for key, value in zip(_GRID, every[number], strict=True)]
        yield json.dumps({"id": number, "overrides": [*texts, *_NODE]})


def measured(lines: Iterable[str], folder: Path) -> dict[str, Any]:
    """Answer points in a separate process: seconds to the first answer, points per second after it, memory."""
    path = folder / "points.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    command = [sys.executable, "-m", "launcher", "check", "--points", str(path)]
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


def one_by_one(lines: Iterable[str], folder: Path) -> dict[str, float]:
    """Milliseconds from a point's line to its answer, if the caller waits for each answer."""
    command = [sys.executable, "-m", "launcher", "check", "--points", "-"]
    times = []
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdin is None or process.stdout is None:
            raise AssertionError("pipes were asked for")
        for line in lines:
            start = time.perf_counter()
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            process.stdout.readline()
            times.append(1000 * (time.perf_counter() - start))
        process.stdin.close()
    deciles = statistics.quantiles(times[1:], n=10)  # The first one waits for the process to start.
    return {"p50_ms": statistics.median(times[1:]), "p90_ms": deciles[-1]}


def estimates(lines: Iterable[str], folder: Path) -> dict[str, float]:
    """Milliseconds for memory and speed of a composed point in one process: the planner's hot loop."""
    catalog, facts = Catalog(folder=folder), machine.facts()
    specs = [request(json.loads(line)["overrides"], facts=facts, catalog=catalog).require() for line in lines]
    start = time.perf_counter()
    for spec in specs:
        memory_estimate(spec, **parts(spec))
        speed_estimate(spec, **parts(spec))
    seconds = time.perf_counter() - start
    return {"ms": 1000 * seconds / len(specs), "points_per_second": len(specs) / seconds}


def main() -> None:
    """Measure and write the result."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        drawn = measured(islice(points(), POINTS), folder)
        alone = one_by_one(grid(), folder)  # First, so that the options' compositions are in the user's cache folder.
        of_grid = measured(grid(), folder) | {"one_by_one": alone, "estimates": estimates(grid(), folder)}
    keep("points", "python -m benchmarks.points", drawn | {"grid": of_grid})


if __name__ == "__main__":
    takes_no_option(__doc__)
    main()
