"""The world of a rehearsed rank: its place, its device, and groups in which this process answers for all other ranks.

Other ranks are assumed to have the same data: a gather copies this rank's own share, a reduced tensor stays as it is. A
tensor that only another rank has is drawn, since constants would send all tokens to the same experts. Torch's own
"fake" group is no substitute: its reduce-scatters return NaN, and DDP waits forever on its empty futures.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

from launcher.spec import RunSpec
from launcher.worker import TrainingError, replaced
from launcher.worker.process import RankPlace
from launcher.worker.trace.shims import done

BACKEND = "rehearsed"  # The name under which torch knows :class:`LoneRank`.
_SPREAD = 0.02  # Standard deviation of drawn values, as for initial weights (Hugging Face's ``initializer_range``).

type _Tensors = Sequence[torch.Tensor]

_ProcessGroup: Any = dist.ProcessGroup  # Any, since torch's methods have many overloads; ours accept them all.


@contextlib.contextmanager
def only_rank(spec: RunSpec, rank: int, backend: str | None = None) -> Iterator[RankPlace]:
    """Act as one rank of a run without the others; the group is named ``backend``, as in ``process.group``."""
    if not 0 <= rank < spec.gpus:
        raise TrainingError(f"the run has ranks 0 to {spec.gpus - 1}, not rank {rank}: --rank 0")
    device = _device(spec)
    os.environ |= _place(spec, rank)
    if not hasattr(dist.Backend, BACKEND.upper()):
        made: Callable[..., LoneRank] = lambda store, rank, size, timeout: LoneRank(rank, size)  # noqa: E731
        dist.Backend.register_backend(BACKEND, made, devices=["cpu", "cuda"])
    with _groups_without_peers():
        backend = backend or ("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl")
        dist.init_process_group(backend, store=FakeStore(), rank=rank, world_size=spec.gpus)
        torch.manual_seed(spec.train.seed)
        yield RankPlace(rank=rank, world=spec.gpus, device=device)
        dist.destroy_process_group()


def _device(spec: RunSpec) -> torch.device:
    if spec.hardware.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise TrainingError(
            "the run is for GPUs, but none is visible here: rehearse it on a node that has one (cluster=slurm), "
            "or on the CPU with hardware.device=cpu"
        )
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    return device


def _place(spec: RunSpec, rank: int) -> dict[str, str]:
    """Environment variables as torchrun sets them, except a local rank of 0: frameworks use that rank's GPU."""
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
def _groups_without_peers() -> Iterator[None]:
    """Make every group a :class:`LoneRank`, seen by torch and the frameworks under the backend name they asked for."""
    c10d: Any = distributed_c10d
    real = c10d._new_process_group_helper

    def helper(size: int, rank: int, ranks: list[int], asked: Any, *rest: Any, **options: Any) -> Any:
        options |= {"device_id": None, "backend_options": None}
        made = real(size, rank, ranks, BACKEND, *rest, **options)
        group = made[0]
        if isinstance(group, LoneRank):
            c10d._world.pg_map[group] = (str(asked), made[1])
            c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(asked))
        return made

    with (
        replaced(c10d, "_new_process_group_helper", helper),
        replaced(dist, "broadcast_object_list", lambda *_, **__: None),  # This rank's own objects serve as well.
    ):
        yield


def _for_each_pair(collective: Callable[..., dist.Work]) -> Callable[..., dist.Work]:
    """Run a collective for each pair of outputs and inputs."""

    def coalesced(group: "LoneRank", outputs: _Tensors, inputs: _Tensors, *_: Any, **__: Any) -> dist.Work:
        for output, mine in zip(outputs, inputs, strict=True):
            collective(group, output, mine)
        return done(outputs)

    return coalesced


class LoneRank(_ProcessGroup):  # type: ignore[misc]  # It is Any for the reason above.
    """The collectives of one rank without the others, under torch's older and newer names."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size

    def rank(self) -> int:
        """This rank's number in the group."""
        return self._rank

    def size(self) -> int:
        """The number of ranks in the group."""
        return self._size

    def getBackendName(self) -> str:  # noqa: N802  # Torch's C++ code calls this name.
        """The name under which the group was made."""
        return BACKEND

    @property
    def group_name(self) -> str:
        """The group's name in torch; torch's own property would ask a backend, and there is none."""
        return str(distributed_c10d._world.pg_names[self])

    def _get_backend(self, device: torch.device) -> Any:
        return self

    supports_coalescing = False
    supports_splitting = False

    def _start_coalescing(self, device: torch.device) -> None:
        """Do nothing: collectives that would be fused, as DeepSpeed does on a GPU, each end by themselves."""

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        return done(())

    def allreduce(self, tensors: _Tensors, opts: Any = None, *_: Any, **__: Any) -> dist.Work:
        """Multiply summed one-element tensors by the number of ranks; a kernel per gradient would cost too much."""
        if opts is None or opts.reduceOp == dist.ReduceOp.SUM:
            for tensor in tensors:
                if tensor.numel() == 1:
                    tensor.detach().mul_(self._size)
        return done(tensors)

    def _leave(self, tensors: _Tensors, *_: Any, **__: Any) -> dist.Work:
        return done(tensors)

    allreduce_coalesced = reduce = send = _leave

    def barrier(self, *_: Any, **__: Any) -> dist.Work:
        """Return at once."""
        return done(())

    def broadcast(self, tensors: _Tensors, opts: Any = None, *_: Any, **__: Any) -> dist.Work:
        """Keep this rank's own tensors, and draw those of another root."""
        if opts is None or opts.rootRank != self._rank:
            draw(tensors)
        return done(tensors)

    def allgather(self, outputs: Sequence[_Tensors], inputs: _Tensors, *_: Any, **__: Any) -> dist.Work:
        """Copy this rank's own tensor for every rank."""
        for row, mine in zip(outputs, inputs, strict=True):
            for output in row:
                _copy(output, mine)
        return done(list(outputs))

    def allgather_coalesced(self, outputs: Sequence[_Tensors], inputs: _Tensors, *_: Any, **__: Any) -> dist.Work:
        """Gather as :meth:`allgather`; each row belongs to a rank."""
        for row in outputs:
            for output, mine in zip(row, inputs, strict=True):
                _copy(output, mine)
        return done(list(outputs))

    def _allgather_base(self, output: torch.Tensor, mine: torch.Tensor, *_: Any, **__: Any) -> dist.Work:
        for part in output.view(-1).chunk(self._size):
            _copy(part, mine.reshape(-1))
        return done((output,))

    allgather_into_tensor_coalesced = _for_each_pair(_allgather_base)

    def _reduce_scatter_base(self, output: torch.Tensor, mine: torch.Tensor, *_: Any, **__: Any) -> dist.Work:
        _copy(output.view(-1), mine.reshape(-1).chunk(self._size)[self._rank])
        return done((output,))

    reduce_scatter_tensor_coalesced = _for_each_pair(_reduce_scatter_base)

    def reduce_scatter(self, outputs: _Tensors, inputs: Sequence[_Tensors], *_: Any, **__: Any) -> dist.Work:
        """Copy this rank's part of its own tensors."""
        for output, parts in zip(outputs, inputs, strict=True):
            _copy(output, parts[self._rank])
        return done(outputs)

    def gather(self, outputs: Sequence[_Tensors], inputs: _Tensors, *_: Any, **__: Any) -> dist.Work:
        """Copy this rank's own tensor for every rank if it is the one that gathers."""
        return self.allgather(outputs, inputs) if outputs else done(())

    def scatter(self, outputs: _Tensors, inputs: Sequence[_Tensors], *_: Any, **__: Any) -> dist.Work:
        """Copy this rank's part, or draw it if another rank scatters."""
        for number, output in enumerate(outputs):
            if inputs:
                _copy(output, inputs[number][self._rank])
            else:
                draw((output,))
        return done(outputs)

    def alltoall_base(self, output: torch.Tensor, mine: torch.Tensor, *_: Any, **__: Any) -> dist.Work:
        """Copy this rank's own input, repeated if it is too short."""
        _copy(output.view(-1), mine.reshape(-1))
        return done((output,))

    alltoall = _for_each_pair(alltoall_base)

    def recv(self, tensors: _Tensors, *_: Any) -> dist.Work:
        """Draw the tensors of another rank."""
        draw(tensors)
        return done(tensors)

    recv_anysource = recv
    all_gather_single = gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base


def _copy(output: torch.Tensor, mine: torch.Tensor) -> None:
    flat = mine.detach().view(output.shape) if mine.numel() == output.numel() else mine.detach().reshape(-1)
    target = output.detach()
    if flat.shape == target.shape:
        target.copy_(flat)
        return
    target, at = target.view(-1), 0
    while at < target.numel() and flat.numel():
        part = min(flat.numel(), target.numel() - at)
        target[at : at + part].copy_(flat[:part])
        at += part


def draw(tensors: Iterable[torch.Tensor]) -> None:
    """Fill floating-point tensors with values like a stage's output or initial weights; leave other tensors."""
    for tensor in tensors:
        if tensor.is_floating_point():
            tensor.detach().normal_(0.0, _SPREAD)
