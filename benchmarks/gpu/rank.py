"""``python -m benchmarks.gpu.rank DIR``: train a few steps of the run in DIR as rank 0, and write what was measured.

A world of one has its real process group. Of a larger one only rank 0 exists: torch's fake process group does nothing
in a collective, while every buffer for it is real. What other ranks would have sent is then whatever lay in memory, so
losses mean nothing; memory does not depend on values.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from launcher.spec import RunSpec
from launcher.spec.parse import parse
from launcher.worker import memory
from launcher.worker.engine import Context, Engine
from launcher.worker.files import write_json
from launcher.worker.fsdp import sharding
from launcher.worker.loop import MEASURED_STEPS
from launcher.worker.trace.shims import reduced_in_place, replaced

STEPS = MEASURED_STEPS + 1


def main(name: str) -> None:
    """Measure the run of a directory; out of memory is an answer."""
    directory = Path(name)
    spec = parse(json.loads((directory / "spec.json").read_text()))
    try:
        measured = measure(spec, directory)
    except torch.OutOfMemoryError:
        measured = {"out_of_memory": True}
    write_json(directory / "measured.json", measured)
    sys.stdout.flush()
    os._exit(0)  # Leaving a group without peers in order is of no use to anyone.


def measure(spec: RunSpec, directory: Path) -> dict[str, Any]:
    """Train ``STEPS`` steps as rank 0 of the run's world.

    Args:
        spec: A run that the rules and its backend accept.
        directory: Where the job's files lie.

    Returns:
        The entry of a rank in ``memory.json``, and on a GPU what the whole card held at the end.
    """
    device = torch.device(spec.hardware.device, 0) if spec.hardware.device == "cuda" else torch.device("cpu")
    _join(spec.gpus, device)
    tracker = memory.tracker(device)
    context = Context(spec=spec, directory=directory, rank=0, world=spec.gpus, device=device, memory=tracker)
    torch.manual_seed(spec.train.seed)
    with tracker.measuring("load"), _let_ddp_reduce(spec.gpus):
        engine: Engine = importlib.import_module(f"launcher.worker.{spec.backend.name}.__main__").build(context)
    for step in range(1, STEPS + 1):
        if step <= MEASURED_STEPS:
            with tracker.measuring("forward"):
                engine.train_step(step, _micro_batches(spec, device))
                tracker.rest(engine.tensors())
        else:
            engine.train_step(step, _micro_batches(spec, device))
    return {**tracker.summary(), "device_bytes": _card(device)}


def _join(world: int, device: torch.device) -> None:
    """The process group that the worker would have, or one whose other ranks do not exist."""
    place = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": world, "LOCAL_SIZE": world}
    os.environ |= {name: str(number) for name, number in place.items()}
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)
    if world > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    else:
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        store = HashStore()
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


def _card(device: torch.device) -> int | None:
    """Bytes in use on the whole card by the driver's word: this process, where nobody else uses it."""
    if device.type == "cpu":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return total - free


if __name__ == "__main__":
    main(sys.argv[1])
