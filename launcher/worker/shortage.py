"""Errors that say that memory, or a disk, has ended: they may be wrapped, and libraries have words of their own."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

import torch

from launcher.base.errors import LauncherError
from launcher.job.memory import Kind, Place

FULL = "no space left on the disk"
SHORT = "a file took less than was written to it: the disk is full, or a quota or a limit is reached"
"""Words of ours, in errors about checkpoints."""

_ON_THE_DEVICE = re.compile(
    r"(CUDA|HIP) out of memory|(CUDA|HIP) (driver )?error: out of memory|CU(BLAS|DNN|SPARSE|SOLVER)_STATUS_ALLOC_FAILED"
    r"|Failed to (CUDA|Cuda) (malloc|calloc)|Cuda failure.{0,8}'?out of memory"
)
"""Words of torch's allocator, of CUDA (``cudaGetErrorString``), of its libraries' states and of NCCL."""

_ON_THE_HOST = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory|Cannot allocate memory|std::bad_alloc|unable to mmap"
)
"""Words of torch's allocator for the CPU (``c10/core/impl/alloc_cpu.cpp``), of the C library and of C++."""

_TORCHS_WORDS = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def kind_of(error: BaseException) -> tuple[Kind, Place, BaseException] | None:
    """The kind and place of a shortage, and the innermost error that says it; None for another error."""
    chain = list(_chain(error))
    for each in reversed(chain):
        found = None if isinstance(each, LauncherError) else _own(each)
        if found is not None:
            return (*found, each)
    for each in chain:
        too_large = isinstance(each, OSError) and each.errno == errno.EFBIG  # A quota's or a limit's word.
        ours = isinstance(each, LauncherError) and (FULL in str(each) or SHORT in str(each))
        if too_large or ours or is_full(each):
            return "disk", "disk", each
    return None


def requested_bytes(message: str) -> int | None:
    """The size that an allocator's message names."""
    found = _TORCHS_WORDS.search(message)
    return None if found is None else int(float(found[1]) * _UNITS[found[2]])


def is_of_the_host(error: BaseException) -> bool:
    """True if the C library had no memory for a tensor, or Python none for an object."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or _ON_THE_HOST.search(str(error)) is not None


def is_full(error: BaseException) -> bool:
    """True if a full disk is behind an error; checkpoint writers wrap it, and each rank's error, in their own."""
    return any(
        "No space left on device" in str(each)
        or (isinstance(each, OSError) and each.errno in (errno.ENOSPC, errno.EDQUOT))
        for each in _chain(error)
    )


def _own(error: BaseException) -> tuple[Kind, Place] | None:
    if isinstance(error, torch.OutOfMemoryError):
        return ("budget", "device") if str(error).startswith("CPU out of memory") else ("device", "device")
    if is_of_the_host(error):
        return "allocator", "host"
    return ("device", "device") if _ON_THE_DEVICE.search(str(error)) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and each that it was raised from or beside, once."""
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        each = waiting.pop(0)
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            failures = getattr(each, "failures", None)  # Of torch's CheckpointException, by rank.
            inner = [item[0] for item in failures.values()] if isinstance(failures, dict) else []
            waiting += [cause for cause in (each.__cause__, each.__context__, *inner) if cause is not None]
