"""The world of a rehearsed rank: its place, its device, and groups that are all answered in this process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

from launcher.spec import RunSpec
from launcher.worker import TrainingError
from launcher.worker.process import RankPlace
from launcher.worker.rehearse import answers
from launcher.worker.trace import shims


@contextlib.contextmanager
def alone(spec: RunSpec, rank: int, backend: str | None = None) -> Iterator[RankPlace]:
    """Be one rank of a run without the others.

    Args:
        spec: The run.
        rank: Of ``spec.gpus``.
        backend: By whose name the group goes; None is gloo, and on GPUs nccl beside it, as in ``process.group``.

    Raises:
        TrainingError: The run has no such rank, or is for a GPU and there is none.
    """
    if not 0 <= rank < spec.gpus:
        raise TrainingError(f"the run has ranks 0 to {spec.gpus - 1}, and rank {rank} was asked for: --rank 0")
    device = _device(spec)
    os.environ |= _place(spec, rank)
    answers.register()
    with _every_group_answered():
        backend = backend or ("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl")
        dist.init_process_group(backend, store=FakeStore(), rank=rank, world_size=spec.gpus)
        torch.manual_seed(spec.train.seed)
        yield RankPlace(rank=rank, world=spec.gpus, device=device)
        dist.destroy_process_group()


def _device(spec: RunSpec) -> torch.device:
    """The CPU, or the first GPU that is visible, whatever the rank's number on its node.

    Raises:
        TrainingError: There is none.
    """
    if spec.hardware.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise TrainingError(
            "the run is for GPUs and none is visible here: rehearse it on a node that has one (cluster=slurm), "
            "or on the CPU with hardware.device=cpu"
        )
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    return device


def _place(spec: RunSpec, rank: int) -> dict[str, str]:
    """As torchrun tells a rank, but for its number on the node: frameworks take that one's GPU, and it has one."""
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": spec.gpus,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": spec.cluster.gpus_per_node,
        "LOCAL_SIZE": spec.cluster.gpus_per_node,
        "GROUP_RANK": rank // spec.cluster.gpus_per_node,
    }
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    return {**address, **{name: str(number) for name, number in numbers.items()}}


@contextlib.contextmanager
def _every_group_answered() -> Iterator[None]:
    """Make each group as :class:`answers.Alone`, whatever backend it is asked for.

    Torch and the frameworks still find the backend's name that they have asked for: some do otherwise under NCCL.
    """
    c10d: Any = distributed_c10d
    real = c10d._new_process_group_helper

    def helper(size: int, rank: int, ranks: list[int], asked: Any, *rest: Any, **options: Any) -> Any:
        options |= {"device_id": None, "backend_options": None}
        made = real(size, rank, ranks, answers.BACKEND, *rest, **options)
        group = made[0]
        if isinstance(group, answers.Alone):
            c10d._world.pg_map[group] = (str(asked), made[1])
            c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(asked))
        return made

    with (
        shims.replaced(c10d, "_new_process_group_helper", helper),
        shims.replaced(dist, "broadcast_object_list", lambda *_, **__: None),  # A rank's own are as good.
    ):
        yield
