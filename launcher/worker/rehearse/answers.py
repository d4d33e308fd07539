"""A process group of one process that answers for all other ranks at once.

It gives what memory and control flow need: outputs are filled with finite numbers, nothing is kept, nobody waits. What
other ranks would contribute is what this rank has: gathered are copies of its own share, a reduced tensor stays as it
is, and of a tensor to be scattered it takes its own part. What only another rank has (a broadcast from it, a tensor
that a pipeline stage sends) is drawn, since constants would send all tokens to the same experts.

Torch's own "fake" group is not taken: its outputs of a reduce-scatter are memory as it was found, where not-a-number
makes DeepSpeed leave out the optimizer, and its futures are empty, on which DDP waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

_SPREAD = 0.02
"""Standard deviation of what another rank sends: that of first weights (Hugging Face's ``initializer_range``)."""


_ProcessGroup: Any = dist.ProcessGroup  # Its overloads are as many as its callers; ours take what any of them gives.


class Alone(_ProcessGroup):  # type: ignore[misc]  # It is Any for the reason above.
    """The collectives of one rank without the others.

    Torch calls some of them by older and newer names (``_allgather_base`` is ``all_gather_single`` from 2.15).
    """

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size

    def rank(self) -> int:
        """This rank in the group."""
        return self._rank

    def size(self) -> int:
        """Ranks of the group."""
        return self._size

    def getBackendName(self) -> str:  # noqa: N802  # Torch's C++ asks for this name.
        """The name under which the group was made."""
        return BACKEND

    @property
    def group_name(self) -> str:
        """The name that torch has given the group: its own class asks a backend for it, and there is none."""
        return str(distributed_c10d._world.pg_names[self])

    def _get_backend(self, device: torch.device) -> Any:
        return self

    supports_coalescing = False
    supports_splitting = False

    def _start_coalescing(self, device: torch.device) -> None:
        """Collectives of one kernel, as DeepSpeed gathers on a GPU: here each ends by itself."""

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        return _done(())

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None, *_: Any, **__: Any) -> dist.Work:
        """The tensors as they are; a sum of single numbers, on which ranks agree, as of equal ranks.

        Larger ones are not multiplied, since that would take a kernel over every gradient.
        """
        if opts is None or opts.reduceOp == dist.ReduceOp.SUM:
            for tensor in tensors:
                if tensor.numel() == 1:
                    tensor.detach().mul_(self._size)
        return _done(tensors)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], *_: Any, **__: Any) -> dist.Work:
        """The tensors as they are."""
        return _done(tensors)

    def reduce(self, tensors: Sequence[torch.Tensor], *_: Any, **__: Any) -> dist.Work:
        """The tensors as they are."""
        return _done(tensors)

    def barrier(self, *_: Any, **__: Any) -> dist.Work:
        """Nobody is waited for."""
        return _done(())

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any = None, *_: Any, **__: Any) -> dist.Work:
        """The tensors of the root, drawn where that is another rank."""
        if opts is None or opts.rootRank != self._rank:
            draw(tensors)
        return _done(tensors)

    def allgather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], *_: Any, **__: Any
    ) -> dist.Work:
        """This rank's own tensor, for each rank."""
        for row, mine in zip(outputs, inputs, strict=True):
            for output in row:
                _copy(output, mine)
        return _done(list(outputs))

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], *_: Any, **__: Any
    ) -> dist.Work:
        """As :meth:`allgather`; the rows are the ranks."""
        for row in outputs:
            for output, mine in zip(row, inputs, strict=True):
                _copy(output, mine)
        return _done(list(outputs))

    def _allgather_base(self, output: torch.Tensor, mine: torch.Tensor, *_: Any, **__: Any) -> dist.Work:
        for part in output.view(-1).chunk(self._size):
            _copy(part, mine.reshape(-1))
        return _done((output,))

    def allgather_into_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], *_: Any, **__: Any
    ) -> dist.Work:
        """As :meth:`all_gather_single`, of several tensors."""
        for output, mine in zip(outputs, inputs, strict=True):
            self._allgather_base(output, mine)
        return _done(outputs)

    def _reduce_scatter_base(self, output: torch.Tensor, mine: torch.Tensor, *_: Any, **__: Any) -> dist.Work:
        _copy(output.view(-1), mine.reshape(-1).chunk(self._size)[self._rank])
        return _done((output,))

    def reduce_scatter_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], *_: Any, **__: Any
    ) -> dist.Work:
        """As :meth:`reduce_scatter_single`, of several tensors."""
        for output, mine in zip(outputs, inputs, strict=True):
            self._reduce_scatter_base(output, mine)
        return _done(outputs)

    def reduce_scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], *_: Any, **__: Any
    ) -> dist.Work:
        """This rank's part of what it has itself."""
        for output, parts in zip(outputs, inputs, strict=True):
            _copy(output, parts[self._rank])
        return _done(outputs)

    def gather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], *_: Any, **__: Any
    ) -> dist.Work:
        """This rank's own tensor for each rank, where it is the one that gathers."""
        return self.allgather(outputs, inputs) if outputs else _done(())

    def scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], *_: Any, **__: Any
    ) -> dist.Work:
        """This rank's part, drawn where another rank scatters."""
        for number, output in enumerate(outputs):
            if inputs:
                _copy(output, inputs[number][self._rank])
            else:
                draw((output,))
        return _done(outputs)

    def alltoall(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], *_: Any, **__: Any
    ) -> dist.Work:
        """From each rank what is sent to it."""
        for output, mine in zip(outputs, inputs, strict=True):
            _copy(output.view(-1), mine.reshape(-1))
        return _done(outputs)

    def alltoall_base(self, output: torch.Tensor, mine: torch.Tensor, *_: Any, **__: Any) -> dist.Work:
        """From each rank what is sent to it; where less is sent than is taken, its beginning again."""
        _copy(output.view(-1), mine.reshape(-1))
        return _done((output,))

    def send(self, tensors: Sequence[torch.Tensor], *_: Any) -> dist.Work:
        """Nobody takes it."""
        return _done(tensors)

    def recv(self, tensors: Sequence[torch.Tensor], *_: Any) -> dist.Work:
        """What another rank would send, drawn."""
        draw(tensors)
        return _done(tensors)

    recv_anysource = recv
    all_gather_single = _allgather_base
    gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base


BACKEND = "rehearsed"
"""The name of :class:`Alone` among torch's backends."""


def register() -> None:
    """Let torch make groups of this kind, on all devices; once for a process."""
    if not hasattr(dist.Backend, BACKEND.upper()):
        made: Callable[..., Alone] = lambda store, rank, size, timeout: Alone(rank, size)  # noqa: E731
        dist.Backend.register_backend(BACKEND, made, devices=["cpu", "cuda"])


def _copy(output: torch.Tensor, mine: torch.Tensor) -> None:
    """Fill a tensor from another one, over and over where that is shorter."""
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
    """Fill tensors of numbers with a fraction as a stage's output or first weights would; the others stay."""
    for tensor in tensors:
        if tensor.is_floating_point():
            tensor.detach().normal_(0.0, _SPREAD)


def _done(tensors: Any) -> dist.Work:
    """A collective that has ended."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(list(tensors))
    work: dist.Work = torch._C._distributed_c10d._create_work_from_future(future)
    return work
