"""The process group that answers for all other ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from launcher.worker.rehearse.world import LoneRank

RANK, SIZE = 2, 4


def _unset(*shape: int) -> torch.Tensor:
    return torch.full(shape, torch.nan)


def _root(rank: int) -> dist.BroadcastOptions:
    options = dist.BroadcastOptions()
    options.rootRank = rank
    return options


FILLED: dict[str, Callable[[LoneRank, torch.Tensor], dist.Work]] = {
    "all_gather": lambda group, out: group.allgather([list(out.chunk(SIZE))], [torch.ones(2)]),
    "all_gather_into_tensor": lambda group, out: group.all_gather_single(out, torch.ones(2)),
    "reduce_scatter": lambda group, out: group.reduce_scatter_single(out, torch.ones(8 * SIZE)),
    "all_to_all": lambda group, out: group.alltoall_base(out, torch.ones(8)),
    "all_to_all of fewer": lambda group, out: group.alltoall_base(out, torch.ones(3)),
    "broadcast": lambda group, out: group.broadcast([out], _root(0)),
    "scatter": lambda group, out: group.scatter([out], []),
    "recv": lambda group, out: group.recv([out], 1, 0),
}


@pytest.mark.parametrize("name", FILLED)
def test_every_output_of_a_collective_is_filled_with_finite_numbers(name: str) -> None:
    output = _unset(8)
    work = FILLED[name](LoneRank(RANK, SIZE), output)
    assert work.wait()
    assert output.isfinite().all()


def test_a_rank_takes_its_own_part_of_what_it_would_reduce_with_others() -> None:
    output = _unset(2)
    LoneRank(RANK, SIZE)._reduce_scatter_base(output, torch.arange(8.0))
    assert output.tolist() == [4.0, 5.0]


def test_what_a_rank_sends_to_all_stays_as_it_is() -> None:
    tensor = torch.arange(3.0)
    LoneRank(RANK, SIZE).broadcast([tensor], _root(RANK))
    assert tensor.tolist() == [0.0, 1.0, 2.0]


def test_a_count_is_summed_as_if_all_ranks_were_alike_and_a_gradient_stays() -> None:
    count, gradient = torch.tensor(3), torch.ones(5)
    group = LoneRank(RANK, SIZE)
    group.allreduce([count])
    group.allreduce([gradient])
    assert (count.item(), gradient.tolist()) == (3 * SIZE, [1.0] * 5)


def test_a_future_holds_the_tensors_so_that_hooks_of_ddp_find_them() -> None:
    tensor = torch.ones(2)
    [found] = LoneRank(RANK, SIZE).allreduce([tensor]).get_future().value()
    assert found.data_ptr() == tensor.data_ptr()
