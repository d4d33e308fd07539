"""Memory of a GPU and its libraries, independent of the model: workspaces, context, communicators, fragmentation.

None of it follows from a formula: each is a measured constant with its source, times a count. Workspaces come from
torch's allocator and count in its peak; context and communicators lie outside it. What the allocator reserves is
simulated (``reserved``); what it needs beyond the peak is a share of it, taken from replayed traces.
"""

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from math import ceil

from launcher.base.frozen import dataclass
from launcher.base.units import KIB, MIB
from launcher.estimate.memory.moments import ALWAYS, TRAINING
from launcher.estimate.memory.reserved import reserved as simulated
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.model import RankModel
from launcher.spec import RunSpec
from launcher.spec.hardware import BLACKWELL, HOPPER

CUBLAS_WORKSPACE = {True: 32 * MIB, False: 2 * 4 * MIB + 8 * 16 * KIB}
"""torch 2.15 ``CublasHandlePool.cpp``, ``parseChosenWorkspaceSize``: 32 MiB for 9.0 and 10.0, else ``:4096:2:16:8``."""

CUBLAS_HANDLES = 2
"""Each thread has its own handle, and autograd runs backward in a second thread: two workspaces. Recorded static bytes
of Megatron-LM's functional tests differ by twice the difference of ``:4096:8`` and the default on A100."""

CONTEXT_BYTES = 837 * MIB
"""A CUDA context with the kernels of training, measured on an H100 with torch 2.11 and CUDA 13, the same under FSDP2
and DeepSpeed (benchmarks/results/gpu.json). Older ones were smaller: 287 to 667 MB (pytorch issue 86509)."""

COMMUNICATOR_BYTES = 600 * MIB
"""One NCCL communicator: 544 MB with 2 ranks, 688 MB with more, on 4 A100 with NVLink (NCCL issue 964)."""

FIRST_ALONE_BYTES, FURTHER_ALONE_BYTES = 494 * MIB, 388 * MIB
"""NCCL 2.28's communicators of one rank on an H100 (benchmarks/results/gpu.json): FSDP2 and DDP have one, DeepSpeed
two."""

COMMUNICATORS_LIMIT_BYTES = 7300 * MIB
"""nvidia-smi minus reserved on 16 H100 with tensor and expert parallelism was 5.8 to 7.3 GB (Megatron-LM issue 150)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocator:
    """Shares of the allocated peak that the caching allocator adds."""

    needed: float  # To the least capacity with which it does not run out, once cached segments are freed.
    reserved: float  # To ``max_memory_reserved``, where memory is ample and states lie in a few buffers.
    deviation: float  # Standard deviation of ln(1 + needed) over the replays.


ALLOCATORS = {
    # Medians of replayed traces: +2.1, 5.5, 5.6, 6.9, 10, 16.3 % needed, +7.6, 16, 23 % reserved.
    "default": Allocator(needed=0.0625, reserved=0.16, deviation=0.045),
    # Midpoints of replays with expandable segments: +0.2 .. 1.5 % needed, +3 .. 19 % reserved.
    "expandable": Allocator(needed=0.0085, reserved=0.11, deviation=0.004),
}
NO_LOSS = Allocator(needed=0.0, reserved=0.0, deviation=0.0)  # The CPU allocator keeps no cache.


def allocator(spec: RunSpec) -> Allocator:
    """The allocator that the run trains with."""
    return ALLOCATORS[spec.train.allocator] if spec.hardware.device == "cuda" else NO_LOSS


_OF_PASSING = 34_907 / 25_267
"""The replayed trace with 16 % fragmentation, a 7 B Llama, had 34,907 MiB at its peak, of which 25,267 were allocated
and freed within the step. Where the rest are a few contiguous buffers, shares apply to the 25,267, and are larger."""


def needed(rank: RankModel, allocated: int, between_steps: int) -> int:
    """Bytes that the allocator needs so as not to run out of memory when ``allocated`` are allocated."""
    share = allocator(rank.spec).needed
    if rank.engine.states_in_buffers:
        return allocated + ceil(_exactly(round(share * _OF_PASSING, 3)) * max(0, allocated - between_steps))
    return ceil(allocated * (1 + share))


def reserved(rank: RankModel, terms: Sequence[MemoryTerm], allocated: int, between_steps: int) -> int:
    """Bytes that the allocator reserves where memory is ample: simulated, or a share where states are a few buffers."""
    if not rank.cuda:
        return allocated
    if not rank.engine.states_in_buffers:
        return simulated(rank, terms)
    share = _exactly(round(allocator(rank.spec).reserved * _OF_PASSING, 3))
    return allocated + ceil(share * (allocated - between_steps))


def fragmentation(reserved: int, allocated: int) -> MemoryTerm:
    """Bytes that the caching allocator reserves beyond those allocated."""
    what = "memory that the caching allocator reserves but cannot use"
    source = "torch c10/cuda/CUDACachingAllocator.cpp"
    return term("fragmentation", ALWAYS, what, "reserved - size", source, reserved=reserved, size=allocated)


@cache
def _exactly(share: float) -> Fraction:
    return Fraction(str(share))


def unsplit(size: int) -> int:
    """Bytes at the end of a new segment that stay with its tensor because the allocator does not split them off.

    A tensor of 10 MiB or more gets a segment of a multiple of 2 MiB (``kMinLargeAlloc``, ``kRoundLarge``), whose rest,
    if at most 1 MiB, stays with it (``should_split``, ``kSmallSize``); expandable segments split every rest off.
    """
    rest = -size % (2 * MIB)
    return rest if size >= 10 * MIB and rest <= MIB else 0


def workspace(rank: RankModel) -> Iterator[MemoryTerm]:
    """The workspaces of cuBLAS, which torch takes from its own allocator at each thread's first product."""
    if rank.cuda:
        size, source = cublas_workspace(rank.spec), "torch CublasHandlePool.cpp"
        yield term("workspace", TRAINING, "cuBLAS workspaces", "n * size", source, n=CUBLAS_HANDLES, size=size)


def cublas_workspace(spec: RunSpec) -> int:
    """Bytes of one workspace: the job's ``CUBLAS_WORKSPACE_CONFIG``, pairs of KiB and a count, or torch's default.

    A GPU of unknown compute capability counts with the larger default.
    """
    pairs = re.findall(r":(\d+):(\d+)", spec.cluster.environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pairs:
        return sum(int(size) * int(number) for size, number in pairs) * KIB
    return CUBLAS_WORKSPACE[spec.hardware.compute_capability in (None, HOPPER, BLACKWELL)]


def context(rank: RankModel) -> Iterator[MemoryTerm]:
    """The CUDA context of the process, and at most as much for one that writes its checkpoints."""
    if rank.cuda:
        yield term("context", ALWAYS, "one CUDA context", "size", "pytorch issues 86509, 107667", size=CONTEXT_BYTES)
    if rank.engine.saving.writer:
        what, source = "context of the process that writes checkpoints", "megatron.core, async_utils.py, async_loop"
        yield term("context", ALWAYS, what, "size", source, size=CONTEXT_BYTES)


def communicators(rank: RankModel) -> Iterator[MemoryTerm]:
    """NCCL's communicators: one for each process group of the run, also for groups of a single rank."""
    if rank.cuda and rank.engine.further_groups is not None:
        n = groups(rank.spec) + rank.engine.further_groups
        yield of_groups(*((0, n) if rank.spec.gpus == 1 else (n, 0)))


def of_groups(several: int, alone: int) -> MemoryTerm:
    """Communicators of ``several`` groups of several ranks, and of ``alone`` groups of a single rank."""
    what, ones = "NCCL communicators", {"n_alone": alone, "size_alone": FURTHER_ALONE_BYTES}
    if not several:
        expression, source = "first + (n_alone - 1) * size_alone", "benchmarks/results/gpu.json"
        return term("communicators", ALWAYS, what, expression, source, first=FIRST_ALONE_BYTES, **ones)
    source, ones = "NCCL issues 964 and 864, Megatron-LM issue 150", ones if alone else {}
    expression = "min(n * size + n_alone * size_alone, limit)" if alone else "min(n * size, limit)"
    values = {"n": several, "size": COMMUNICATOR_BYTES, "limit": COMMUNICATORS_LIMIT_BYTES, **ones}
    return term("communicators", ALWAYS, what, expression, source, **values)


def groups(spec: RunSpec) -> int:
    """Number of process groups of one rank by the run's parallel degrees: the world, and each smaller group."""
    parallel, gpus = spec.parallel, spec.gpus
    inside = (parallel.tensor, parallel.pipeline, parallel.context, parallel.ulysses, parallel.expert)
    return 1 + sum(1 < degree < gpus for degree in (spec.data_degree, *inside, parallel.replicate))
