"""The cost of writing ``memory.jsonl`` during a run: ``python -m benchmarks.memory_log``.

Steps that are followed and steps that are not are taken in turn, so that a machine that gets slower does so for both,
by the calls of the training loop, in one rank. A sample costs what the pair differs by, at the median; spread over the
steps of ``train.log_memory_every`` it is the share of step time that is kept. The hooks on blocks stay on all the time:
what they take is timed by itself. On a machine with a GPU its steps are timed there, else on the CPU.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.reporting import keep, takes_no_option
from launcher.base import machine
from launcher.config.request import request
from launcher.preflight import plan
from launcher.spec import RunSpec
from launcher.worker import loop
from launcher.worker.engine import Context, Engine
from launcher.worker.memory import live_bytes
from launcher.worker.memory.piles import Layers
from launcher.worker.watch import MemoryLog, tokens_of

PAIRS = 12
_WARM_UP = 3
_CALLS = 20_000

CASES: dict[str, Sequence[str]] = {
    "fsdp": ("parallel=fsdp", "train.micro_batch_size=1"),
    "fsdp, 8 samples": ("parallel=fsdp", "train.micro_batch_size=8"),
    "zero2": ("parallel=zero2", "train.micro_batch_size=1"),
}
"""Of the model ``tiny``, with 256 tokens a sample: its steps are the shortest that anyone trains, so they pay most."""


def main() -> None:
    """Measure each case in its own process, and write the result."""
    if len(sys.argv) > 2 and sys.argv[1] == "case":
        _case(sys.argv[2], Path(sys.argv[3]))
        return
    takes_no_option(__doc__)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for number, case in enumerate(CASES):
            out = Path(name) / f"{number}.json"
            if os.spawnv(
                os.P_WAIT, sys.executable, [sys.executable, "-m", "benchmarks.memory_log", "case", case, str(out)]
            ):
                raise RuntimeError(f"the case {case} failed")
            figures[case] = json.loads(out.read_text())
    keep("memory_log", "python -m benchmarks.memory_log", figures)


def _case(name: str, out: Path) -> None:
    torch.set_num_threads(1)
    words = ["model=tiny", "data=synthetic", "precision=bf16", "train.global_batch_size=null", *CASES[name]]
    spec = request([*words, "cluster.nodes=1", "cluster.gpus_per_node=1"], facts=machine.facts()).require()
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        for file, text in plan.translate(spec, python=sys.executable).at(folder).files.items():
            (directory / file).write_text(text)
        with loop.entered(spec, directory) as context:
            out.write_text(json.dumps(_measured(spec, context)))
            sys.stdout.flush()
            os._exit(0)


def _measured(spec: RunSpec, context: Context) -> dict[str, Any]:
    engine: Engine = importlib.import_module(f"launcher.worker.{spec.backend.name}.engine").build(context)
    context.memory.kept = engine.piles
    log = MemoryLog(context, resumed_at=0)
    pairs = []
    for number in range(_WARM_UP + PAIRS):
        plain, sampled = _step(context, engine, 2 * number + 1), _step(context, engine, 2 * number + 2, log)
        pairs.append((plain, sampled))
    timed = pairs[_WARM_UP:]
    step = statistics.median(plain for plain, _ in timed)
    sample = statistics.median(sampled - plain for plain, sampled in timed)
    hooks = _hook_seconds() * 2 * spec.model.num_hidden_layers * spec.gradient_accumulation
    every = spec.train.log_memory_every or 1
    return {
        "device": context.device.type,
        "step_seconds": round(step, 6),
        "sample_seconds": round(sample, 6),
        "hook_seconds_of_a_step": round(hooks, 9),
        "log_memory_every": every,
        "share_of_step_time": round((sample / every + hooks) / step, 5),
    }


def _step(context: Context, engine: Engine, step: int, log: MemoryLog | None = None) -> float:
    """The seconds of a step, followed where there is a log, as the training loop follows it."""
    spec, tracker = context.spec, context.memory
    shape = (spec.micro_batch_size, spec.sequence_length + 1)
    batches = [
        torch.randint(0, spec.model.vocab_size, shape, device=context.device) for _ in range(spec.gradient_accumulation)
    ]
    began = _now(context)
    if log is None:
        engine.train_step(step, batches)
        return _now(context) - began
    with tracker.measuring("forward", live_bytes.tensors_of_process(), summary=False):
        engine.train_step(step, batches)
        tracker.rest((), summary=False)
    log.write(step, tokens_of(batches))
    return _now(context) - began


def _hook_seconds() -> float:
    """Seconds of one hook while nothing is measured, from a module with both hooks and one without."""
    block, followed, layers = nn.Identity(), nn.Identity(), Layers()
    layers.follow({0: followed})
    value, seconds = torch.zeros(1), []
    for module in (block, followed):
        began = time.perf_counter()
        for _ in range(_CALLS):
            module(value)
        seconds.append((time.perf_counter() - began) / _CALLS)
    return max(0.0, seconds[1] - seconds[0]) / 2


def _now(context: Context) -> float:
    if context.device.type == "cuda":
        torch.cuda.synchronize(context.device)
    return time.perf_counter()


if __name__ == "__main__":
    main()
