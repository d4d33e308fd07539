"""``python -m benchmarks.gpu.rank DIR``: train a few steps of the run in DIR as rank 0, and write what was measured.

With ``--wait`` it imports what it needs, then waits for a line on its standard input before it touches the GPU; it ends
when that input does. A world of one has its real process group. Of a larger one only rank 0 exists: torch's fake
process group does nothing in a collective, while every buffer for it is real. What other ranks would have sent is then
whatever lay in memory, so losses mean nothing; memory does not depend on values.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.gpu import counters, kernels
from benchmarks.gpu.steps import STEPS, WARM_UP
from launcher.base.files import write_atomically
from launcher.spec import RunSpec
from launcher.spec.parse import parse
from launcher.worker import loop, memory, process, replaced
from launcher.worker.engine import Context, Engine
from launcher.worker.fsdp import sharding
from launcher.worker.loop import MEASURED_STEPS
from launcher.worker.memory import MemoryTracker
from launcher.worker.profile import FOLDER
from launcher.worker.trace.shims import reduced_in_place

MEGATRON_MODULES = ("pretraining", "layout", "follow", "data")
"""Modules of ``launcher.worker.megatron`` that its worker imports only when training begins."""

_TIMED_S = 8.0
"""No further step is timed after so long: one in fp32 takes ten times one in bf16."""


def main(name: str, *, waits: bool = False) -> None:
    """Measure the run of a directory; out of memory is an answer."""
    directory = Path(name)
    spec = parse(json.loads((directory / "spec.json").read_text()))
    _import(spec)
    if waits:
        _wait()
    try:
        measured = measure(spec, directory)
    except torch.OutOfMemoryError:
        measured = {"out_of_memory": True}
    write_atomically(directory / "measured.json", measured)
    sys.stdout.flush()
    os._exit(0)  # Leaving a group without peers in order is of no use to anyone.


def measure(spec: RunSpec, directory: Path) -> dict[str, Any]:
    """Train ``STEPS`` steps as rank 0 of the run's world.

    Args:
        spec: A run that the rules and its backend accept.
        directory: Where the job's files lie.

    Returns:
        The entry of a rank in ``memory.json``, on a GPU what the whole card held at the end, and the seconds of the
        steps after ``WARM_UP``.
    """
    _stand_as_rank_0(spec.gpus)
    return _by_megatron(spec, directory) if spec.backend.name == "megatron" else _by_engine(spec, directory)


def _by_engine(spec: RunSpec, directory: Path) -> dict[str, Any]:
    device = torch.device(spec.hardware.device, 0) if spec.hardware.device == "cuda" else torch.device("cpu")
    _join(spec.gpus, device)
    process.use_host(spec)
    with replaced(memory, "CudaTracker", counters.PhaseCounters):
        tracker = memory.tracker(device)
    context = Context(spec=spec, directory=directory, rank=0, world=spec.gpus, device=device, memory=tracker)
    torch.manual_seed(spec.train.seed)
    with tracker.measuring("load"), _let_ddp_reduce(spec.gpus):
        engine: Engine = importlib.import_module(f"launcher.worker.{spec.backend.name}.__main__").build(context)
    seconds = _trained(spec, engine, tracker, device)
    found = {**tracker.summary(), **_held(device), "step_seconds": seconds}
    return {**found, "card": _card(spec, engine, device)} if device.type == "cuda" else found


def _trained(spec: RunSpec, engine: Engine, tracker: MemoryTracker, device: torch.device) -> list[float]:
    """All steps; the seconds of those after the first."""
    seconds: list[float] = []
    for step in range(1, STEPS + 1):
        micro_batches = _micro_batches(spec, device)
        began = _now(device)
        with tracker.measuring("forward") if step <= MEASURED_STEPS else contextlib.nullcontext():
            engine.train_step(step, micro_batches)
            tracker.rest(engine.tensors() if step <= MEASURED_STEPS else ())
        if step > WARM_UP:
            seconds.append(_now(device) - began)
        if sum(seconds) > _TIMED_S:
            break
    return seconds


def _card(spec: RunSpec, engine: Engine, device: torch.device) -> dict[str, Any]:
    """Train one step more under the profiler; seconds of its kernels."""
    micro_batches = _micro_batches(spec, device)

    def step() -> None:
        engine.train_step(STEPS + 1, micro_batches)
        torch.cuda.synchronize(device)

    return kernels.of_step(step)


def _by_megatron(spec: RunSpec, directory: Path) -> dict[str, Any]:
    """Train with Megatron-LM's own loop through launch's worker, for the run's number of steps."""
    from launcher.worker.megatron import __main__ as worker

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    arguments = json.loads((directory / "arguments.json").read_text())
    backend = "gloo" if spec.hardware.device == "cpu" else "nccl"
    with (
        replaced(memory, "CudaTracker", counters.PhaseCounters),
        loop.entered(spec, directory, backend=backend) as context,
    ):
        worker._train(context, arguments)
        found = {**context.memory.summary(), **_held(context.device)}
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    traces = sorted((directory / FOLDER).glob("*.json.gz"))
    card = {"card": kernels.of_trace(traces[0])} if traces and context.device.type == "cuda" else {}
    return {**found, **card, "step_seconds": [row["step_seconds"] for row in rows[WARM_UP:]]}


def _import(spec: RunSpec) -> None:
    """Import everything that takes seconds and does not use the GPU."""
    if spec.backend.name != "megatron":
        importlib.import_module(f"launcher.worker.{spec.backend.name}.engine")
        from launcher.worker.model import network  # Late, with all of transformers, as the engine itself.

        network.network(spec.model, torch.float32)
    elif spec.hardware.device == "cuda":
        for name in MEGATRON_MODULES:
            importlib.import_module(f"launcher.worker.megatron.{name}")


def _wait() -> None:
    """Wait for a line; from then on end together with the process that sent it."""
    if not sys.stdin.readline():
        os._exit(1)

    def follow() -> None:
        while sys.stdin.readline():
            pass
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _stand_as_rank_0(world: int) -> None:
    place = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": world, "LOCAL_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ |= {name: str(number) for name, number in place.items()}


def _join(world: int, device: torch.device) -> None:
    """Join the worker's process group, or one without the other ranks."""
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)
    if world > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    else:
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        store = TCPStore("127.0.0.1", 0, world_size=1, is_master=True)
        dist.init_process_group(backend, store=store, rank=0, world_size=1, device_id=device if cuda else None)


@contextlib.contextmanager
def _let_ddp_reduce(world: int) -> Iterator[None]:
    """DDP takes the reduced bucket from the work's future, in which the fake process group has none."""
    replicate = sharding.replicate

    def replicated(*args: Any) -> DistributedDataParallel:
        wrapped = replicate(*args)
        wrapped.register_comm_hook(None, reduced_in_place)
        return wrapped

    with replaced(sharding, "replicate", replicated) if world > 1 else contextlib.nullcontext():
        yield


def _micro_batches(spec: RunSpec, device: torch.device) -> list[torch.Tensor]:
    shape = (spec.micro_batch_size, spec.sequence_length + 1)
    made = range(spec.gradient_accumulation)
    return [torch.randint(0, spec.model.vocab_size, shape, device=device) for _ in made]


def _held(device: torch.device) -> dict[str, int | None]:
    return {"device_bytes": None if device.type == "cpu" else counters.card(device)}


def _now(device: torch.device) -> float:
    """The time after the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


if __name__ == "__main__":
    main(sys.argv[1], waits="--wait" in sys.argv[2:])
