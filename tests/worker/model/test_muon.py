"""The collectives of Muon's step on shards, which the price of a step counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="workers need the extra 'fsdp'")

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from launcher.estimate.speed.matrices import _exchanges


@pytest.fixture
def eight_ranks() -> Iterator[None]:
    """One of eight ranks, whose collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()


def counted(shape: tuple[int, int]) -> Counter[str]:
    mesh = init_device_mesh("cpu", (8,))
    weight = torch.nn.Parameter(distribute_tensor(torch.ones(shape), mesh, [Shard(0)]))
    weight.grad = distribute_tensor(torch.ones(shape), mesh, [Shard(0)])
    optimizer = torch.optim.Muon([weight], 0.1)
    with CommDebugMode() as found:  # type: ignore[no-untyped-call]
        optimizer.step()  # type: ignore[no-untyped-call]
    kinds = {"all_reduce": "all_reduce", "all_gather_into_tensor": "all_gather"}
    return Counter({kinds[str(op).rpartition(".")[2]]: count for op, count in found.get_comm_counts().items()})


@pytest.mark.parametrize("shape", [(64, 256), (256, 64), (64, 64)])
def test_an_iteration_exchanges_what_is_priced(eight_ranks: None, shape: tuple[int, int]) -> None:
    priced = Counter({one.kind: 0 for one in _exchanges(*shape)})
    for one in _exchanges(*shape):
        priced[one.kind] += 5
    assert counted(shape) == priced + Counter(all_reduce=1), "the norm by which the gradient is divided is one more"
