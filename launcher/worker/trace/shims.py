"""Replacements for framework calls that need peers of the process group or values of tensors.

DDP agrees on its buckets by values; DeepSpeed compares numbers among ranks; routers count the tokens of each expert;
``Module._apply`` swaps parameters. Each is replaced only inside a context manager and restored after it.
"""

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parallel import DistributedDataParallel

from launcher.spec import RunSpec
from launcher.worker import replaced
from launcher.worker.engine import Context
from launcher.worker.fsdp import sharding
from launcher.worker.model import LanguageModel

_AGREEMENTS = ("partitioned_param_coordinator", "partition_parameters", "stage3")
"""Modules of DeepSpeed that check whether all ranks have the same numbers."""


class _KeepsBuckets:
    """DDP's reducer, except that it keeps its first bucket order, on which ranks would agree by sending values."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


class _Quantizer:
    """Makes the tensors of DeepSpeed's CUDA kernel without their values (csrc/quantization/pt_binding.cpp)."""

    Symmetric = 0

    def quantize(self, values: torch.Tensor, groups: int, *_: int) -> tuple[torch.Tensor, torch.Tensor]:
        return values.to(torch.int8), values.new_empty((groups, 1), dtype=torch.float32)

    def dequantize(self, values: torch.Tensor, *_: Any) -> torch.Tensor:
        return values.to(torch.half)


def _by_rows(values: torch.Tensor, inner_block_size: int, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs of torchao's Triton kernel ``triton_to_mxfp8_dim0``, without values."""
    scales = values.new_empty((*values.shape[:-1], values.shape[-1] // inner_block_size), dtype=torch.float8_e8m0fnu)
    return values.new_empty(values.shape, dtype=torch.float8_e4m3fn), scales


def _by_columns(values: torch.Tensor, **_: Any) -> tuple[torch.Tensor, ...]:
    """The outputs of torchao's CUDA kernel ``mxfp8_quantize``, without values; those by rows are empty."""
    codes, scales = _by_rows(values.t(), 32)
    return codes[:0], codes.t(), scales[:0], scales


@contextlib.contextmanager
def mxfp8() -> Iterator[None]:
    """Make torchao cast to mxfp8 as on a GPU that has its kernels."""
    from torchao.prototype.mx_formats import kernels, mx_tensor  # Late: it takes a second.

    with replaced(mx_tensor, "triton_to_mxfp8_dim0", _by_rows), replaced(kernels, "mxfp8_quantize_cuda", _by_columns):
        yield


def _in_four_bits(values: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, ...]:
    """The outputs of torchao's Triton kernels, by rows and by columns; their own fakes exist only with a GPU."""
    m, n = values.shape
    found: list[torch.Tensor] = []
    for rows, columns in ((m, n), (n, m)):
        found.append(values.new_empty((rows, columns // 2), dtype=torch.uint8))
        found.append(values.new_empty((rows // 128, columns // 64, 32, 16), dtype=torch.float8_e4m3fn))
    return tuple(found)


def _largest(values: torch.Tensor, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return values.new_empty((), dtype=torch.float32), values.new_empty((), dtype=torch.float32)


@contextlib.contextmanager
def nvfp4() -> Iterator[None]:
    """Make torchao cast to nvfp4 (``nvfp4_training``) as on a GPU that has its kernels."""
    from torchao.prototype.moe_training.nvfp4_training import nvfp4_linear  # Late: it takes a second.

    def by_columns_first(values: torch.Tensor, **_: Any) -> tuple[torch.Tensor, ...]:
        rows, scales, *columns = _in_four_bits(values)
        return (*columns, rows, scales)

    with (
        replaced(nvfp4_linear, "triton_rht_amax", _largest),
        replaced(nvfp4_linear, "triton_rht_quantize_row_col", by_columns_first),
        replaced(nvfp4_linear, "triton_weight_quantize_2d", _in_four_bits),
    ):
        yield


@contextlib.contextmanager
def ddp() -> Iterator[None]:
    """Let DDP and its hooks reduce without peers."""
    with (
        replaced(dist, "all_reduce", functools.partial(_reduce, dist.all_reduce)),
        replaced(sharding, "replicate", functools.partial(_replicate, sharding.replicate)),
    ):
        yield


@contextlib.contextmanager
def even_routing(spec: RunSpec) -> Iterator[None]:
    """Make the ranks of a token exchange (``AllToAllEP``) send each other equal shares of their token copies."""
    degree, parallel = spec.parallel.expert, spec.parallel
    copies = spec.micro_batch_size * spec.sequence_length // parallel.context * spec.model.num_experts_per_tok
    sizes = [copies // degree + (rank < copies % degree) for rank in range(degree)]

    def counts(tensor: FakeTensor, otherwise: Callable[..., Any] = FakeTensor.tolist) -> Any:
        return [sizes, sizes] if tuple(tensor.shape) == (2, degree) else otherwise(tensor)

    with replaced(FakeTensor, "tolist", counts) if degree > 1 else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def deepspeed(context: Context) -> Iterator[None]:
    """Let DeepSpeed start on the fake device, without checks of other ranks' numbers."""
    place = {"RANK": context.rank, "LOCAL_RANK": 0, "WORLD_SIZE": context.world, "LOCAL_SIZE": context.world}
    os.environ |= {"DS_ACCELERATOR": "cpu", **{name: str(number) for name, number in place.items()}}
    from deepspeed.comm import comm
    from deepspeed.runtime.zero.partition_parameters import CUDAQuantizer
    from deepspeed.utils import groups

    from launcher.worker.model import adapters

    with contextlib.ExitStack() as stack:
        # DeepSpeed keeps process groups of the world in which it started, but each depth is traced in its own world.
        stack.enter_context(replaced(comm, "cdb", None))
        stack.callback(groups._release_process_group_references)
        # Device and dtype are already right, and fake parameters cannot be swapped.
        stack.enter_context(replaced(LanguageModel, "_apply", lambda model, *_, **__: model))
        stack.enter_context(replaced(adapters, "inject", functools.partial(_inject, adapters.inject)))
        stack.enter_context(replaced(CUDAQuantizer, "quantizer_cuda_module", _Quantizer()))
        stack.enter_context(agreed())
        yield


def _inject(inject: Callable[..., None], *args: Any) -> None:
    """Add an adapter without moving its modules: they are in place, and fake parameters cannot be swapped."""
    with replaced(nn.Module, "to", lambda module, *_, **__: module):
        inject(*args)


@contextlib.contextmanager
def agreed() -> Iterator[None]:
    """Skip DeepSpeed ZeRO 3's comparison of numbers with other ranks."""
    with contextlib.ExitStack() as stack:
        for name in _AGREEMENTS:
            module = importlib.import_module(f"deepspeed.runtime.zero.{name}")
            stack.enter_context(replaced(module, "assert_ints_same_as_other_ranks", lambda *_, **__: None))
        yield


def _reduce(all_reduce: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return None if all_reduce(tensor, *args, **kwargs) is None else done([tensor])


def _replicate(replicate: Callable[..., DistributedDataParallel], *args: Any) -> DistributedDataParallel:
    wrapped = replicate(*args)
    if not wrapped._comm_hooks:
        wrapped.register_comm_hook(None, reduced_in_place)
    kept: Any = _KeepsBuckets(wrapped.reducer)
    wrapped.reducer = kept
    return wrapped


def reduced_in_place(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP hook that returns the bucket in a future, which the fake process group would leave empty."""
    return _finished(bucket.buffer())


def done(tensors: Iterable[Any]) -> dist.Work:
    """A finished collective with its tensors in its future, which torch's fake process group leaves empty."""
    work: dist.Work = torch._C._distributed_c10d._create_work_from_future(_finished(list(tensors)))
    return work


def _finished(value: Any) -> torch.futures.Future[Any]:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(value)
    return future
