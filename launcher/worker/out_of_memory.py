"""``oom.json``: all that a rank knows when it runs out of memory or disk; and the memory limit that it is held to.

Live allocations are recorded when a request is refused, before anything is freed, and written only when an error ends
the rank, since frameworks may catch the first error and retry. On a GPU the allocator keeps its newest 50,000 requests
with their Python frames: 2 us a request (docs.pytorch.org, "Understanding CUDA Memory Usage").
"""

import contextlib
import errno
import json
import os
import pickle
import re
import resource
import shutil
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from launcher.base import files as whole_files
from launcher.base import machine, secret
from launcher.base.errors import LauncherError
from launcher.base.files import write_atomically
from launcher.job.memory import (
    OUT_OF_MEMORY,
    Held,
    Kind,
    OutOfMemory,
    Place,
    asked_bytes,
    biggest,
    host_memory,
    name_of,
)
from launcher.worker.engine import Context

_LARGEST = 16  # Largest allocations reported.
_HISTORY = 50_000  # Requests that the allocator keeps.
_LONGEST = 4000  # Longest message stored, in characters.


@contextlib.contextmanager
def watched(context: Context) -> Iterator[None]:
    """Record refused requests in the code inside; with ``train.enforce_memory`` hold the rank to its memory limit."""
    watch = _Watch(context)
    _watches.append(watch)
    with contextlib.ExitStack() as around:
        if context.device.type == "cuda":
            with contextlib.suppress(Exception):
                _observe(watch)
        limit = context.spec.rank_memory_bytes
        if context.spec.train.enforce_memory and limit is not None:
            around.enter_context(context.memory.enforce(limit))
        context.memory.tell(refused=watch.refused, failed=watch.failed)
        yield


_watches: "list[_Watch]" = []  # This process's watch; global, since errors are reported without the rank's context.


def write(directory: Path, error: BaseException) -> None:
    """Write ``oom.json`` if the error that ends this rank says that memory or a disk is exhausted."""
    with contextlib.suppress(Exception):
        found = kind_of(error)
        if found is None:
            return
        kind, place, innermost = found
        known = _watches[-1].noted if _watches else None
        if known is None or (known.kind, known.place) != (kind, place):
            known = _now(kind, place, innermost, directory)
        content = json.dumps(replace(known, message=secret.redacted(str(innermost))[:_LONGEST]).as_dict())
        whole_files.write_new(directory / OUT_OF_MEMORY, f"{content}\n".encode())


class _Watch:
    def __init__(self, context: Context) -> None:
        self.context = context
        self.noted: OutOfMemory | None = None

    def refused(self, requested: int, operation: str) -> None:
        """Record live allocations; called by the CPU tensor tracker when a request exceeds its budget."""
        with contextlib.suppress(Exception):
            known = self.now("budget", "device", requested, operation)
            free = max(0, (known.capacity_bytes or 0) - (known.allocated_bytes or 0))
            self.noted = replace(known, free_bytes=free, snapshot=self._write_live())

    def failed(self, error: RuntimeError, operation: str) -> None:
        """Record live allocations; called by the same tracker if an operation failed, maybe for lack of host memory."""
        with contextlib.suppress(Exception):
            if is_of_the_host(error):
                known = self.now("allocator", "host", asked_bytes(str(error)), operation)
                self.noted = replace(_with_host(known), snapshot=self._write_live())

    def observed(self, device: int, requested: int, total: int, free: int) -> None:
        """Record live allocations; called by a GPU's allocator, once it has freed all that it could."""
        with contextlib.suppress(Exception):
            known = self.now("device", "device", requested, None)
            reserved = torch.cuda.memory_reserved(device)
            self.noted = replace(
                known,
                # With a per-process limit the allocator reports that limit as the total, but the card's free bytes.
                free_bytes=max(0, min(free, total - reserved)),
                capacity_bytes=total,
                allocated_bytes=torch.cuda.memory_allocated(device),
                reserved_bytes=reserved,
                piles=_piles_of_a_pass(known, self.context.memory.measured),
            )
            self.noted = replace(self.noted, **self._from_snapshot())
            others = _others_on(device)
            if others is not None:
                self.noted = replace(self.noted, others=others, others_bytes=sum(int(each["bytes"]) for each in others))

    def now(self, kind: Kind, place: Place, requested: int | None, operation: str | None) -> OutOfMemory:
        """Return all that is known now."""
        context, memory = self.context, self.context.memory
        (step, phase), alive, piles = context.beat.doing, memory.alive(), memory.piles()
        largest = sorted(alive or (), key=lambda each: -each.bytes)[:_LARGEST]
        return OutOfMemory(
            kind=kind,
            place=place,
            time=time.time(),
            rank=context.rank,
            node=machine.node(),
            step=step,
            phase=phase,
            layer=memory.layers.now if phase in ("forward", "backward", "evaluation") else None,
            operation=operation,
            requested_bytes=requested,
            capacity_bytes=context.spec.rank_memory_bytes if place == "device" else None,
            allocated_bytes=None if alive is None else sum(piles.values()),
            tokens=memory.tokens,
            piles=piles,
            largest=tuple(largest),
            host=host_memory(),
            last=memory.last,
        )

    def _write_live(self) -> str | None:
        alive = self.context.memory.alive()
        if alive is None:
            return None
        name = f"logs/memory_snapshot.rank{self.context.rank}.json"
        rows = [asdict(each) for each in sorted(alive, key=lambda each: -each.bytes)]
        write_atomically(self.context.directory / name, {"schema": 1, "allocations": rows})
        return name

    def _from_snapshot(self) -> dict[str, Any]:
        """Write torch's snapshot for its viewer (docs.pytorch.org/memory_viz); return its name and largest blocks."""
        name = f"logs/memory_snapshot.rank{self.context.rank}.pickle"
        snapshot = torch.cuda.memory._snapshot()
        found: dict[str, Any] = {"largest": _largest(snapshot)}
        with contextlib.suppress(OSError), (self.context.directory / name).open("wb") as file:
            pickle.dump(snapshot, file)
            found["snapshot"] = name
        return found


def _largest(snapshot: Any) -> tuple[Held, ...]:
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    alive = sorted((block for block in blocks if block["state"] == "active_allocated"), key=lambda each: -each["size"])
    found = []
    for block in alive[:_LARGEST]:
        frame = next(iter(block.get("frames") or ()), None)
        line = None if frame is None else f"{frame['name']} ({Path(frame['filename']).name}:{frame['line']})"
        found.append(Held(bytes=block["size"], pile="unknown", operation=line))
    return tuple(found)


def _piles_of_a_pass(known: OutOfMemory, measured: bool) -> Mapping[str, int]:
    """Piles of a GPU; in an unmeasured step, temporary bytes of a pass beyond the static ones count as activations."""
    if measured or known.phase not in ("forward", "backward"):
        return known.piles
    rest = known.piles.get("temporary", 0)
    static = 0 if known.last is None or known.last.static is None else known.last.static.get("temporary", 0)
    kept = min(rest, static)
    passing = {"activations": known.piles.get("activations", 0) + rest - kept, "temporary": kept}
    return {pile: size for pile, size in {**known.piles, **passing}.items() if size}


def _observe(watch: _Watch) -> None:
    torch.cuda.memory._record_memory_history(enabled="all", context="alloc", stacks="python", max_entries=_HISTORY)
    attach: Any = torch._C
    attach._cuda_attach_out_of_memory_observer(watch.observed)  # As torch's page on CUDA memory does.


def _now(kind: Kind, place: Place, error: BaseException, directory: Path) -> OutOfMemory:
    requested = asked_bytes(str(error))
    if _watches:
        known = _watches[-1].now(kind, place, requested, None)
    else:
        rank, node = int(os.environ.get("RANK", "0")), machine.node()
        known = OutOfMemory(kind=kind, place=place, time=time.time(), rank=rank, node=node, phase="load", step=0)
        known = replace(known, requested_bytes=requested, host=host_memory())
    if place == "disk":
        return _with_disk(known, error, directory)
    return _with_host(known) if place == "host" else known


def _with_host(known: OutOfMemory) -> OutOfMemory:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:  # This process's own limit (``ulimit -v``), whatever the node has.
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        free = max(0, limit - pages * resource.getpagesize())
        return replace(known, capacity_bytes=limit, free_bytes=free)
    capacity = None if known.host is None else known.host.node_bytes
    used = None if known.host is None else known.host.node_used_bytes
    left = None if capacity is None or used is None else max(0, capacity - used)
    return replace(known, capacity_bytes=capacity, free_bytes=left, others=biggest(without={os.getpid()}))


def _with_disk(known: OutOfMemory, error: BaseException, directory: Path) -> OutOfMemory:
    name = error.filename if isinstance(error, OSError) else None
    path = Path(os.fsdecode(name)) if name is not None else _written_by(error, directory)
    space = shutil.disk_usage(next(place for place in (path, *path.parents) if place.exists()))
    phase = "checkpoint_save" if directory / "checkpoints" in (path, *path.parents) else known.phase
    known = replace(known, operation=str(path), phase=phase, layer=None, free_bytes=space.free)
    return replace(known, capacity_bytes=space.total)


def _written_by(error: BaseException, directory: Path) -> Path:
    frames: list[Any] = traceback.extract_tb(error.__traceback__)
    names = {Path(frame.filename).stem for frame in frames}
    if "metrics" in names and "checkpoints" not in names:
        return directory / "metrics.jsonl"
    return directory / "checkpoints" if (directory / "checkpoints").is_dir() else directory


def _others_on(device: int) -> tuple[dict[str, Any], ...] | None:
    """Other processes on a GPU as NVML reports them, largest first; None in a container with its own PIDs."""
    import pynvml

    pynvml.nvmlInit()
    try:
        uuid = torch.cuda.get_device_properties(device).uuid
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        found = [(each.pid, each.usedGpuMemory or 0) for each in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    finally:
        pynvml.nvmlShutdown()
    if os.getpid() not in [pid for pid, _ in found]:
        return None
    rows = [{"pid": pid, "name": name_of(pid), "bytes": used} for pid, used in found if pid != os.getpid()]
    return tuple(sorted(rows, key=lambda row: -row["bytes"]))


FULL = "no space left on the disk"
SHORT = "a write to a file was cut short: the disk is full, or a quota or a limit is reached"
"""Phrases that launch uses in errors about checkpoints."""

_ON_THE_DEVICE = re.compile(
    r"(CUDA|HIP) out of memory|(CUDA|HIP) (driver )?error: out of memory|CU(BLAS|DNN|SPARSE|SOLVER)_STATUS_ALLOC_FAILED"
    r"|Failed to (CUDA|Cuda) (malloc|calloc)|Cuda failure.{0,8}'?out of memory"
)
"""Messages of torch's allocator, of CUDA (``cudaGetErrorString``), of its libraries' status codes and of NCCL."""

_ON_THE_HOST = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory|Cannot allocate memory|std::bad_alloc|unable to mmap"
)
"""Messages of torch's CPU allocator (``c10/core/impl/alloc_cpu.cpp``), of the C library and of C++."""


def kind_of(error: BaseException) -> tuple[Kind, Place, BaseException] | None:
    """The kind and place of a shortage, and the innermost error that reports it; None for any other error."""
    chain = list(_chain(error))
    for each in reversed(chain):
        found = None if isinstance(each, LauncherError) else _shortage(each)
        if found is not None:
            return (*found, each)
    for each in chain:
        too_large = isinstance(each, OSError) and each.errno == errno.EFBIG  # A quota or a limit was reached.
        ours = isinstance(each, LauncherError) and (FULL in str(each) or SHORT in str(each))
        if too_large or ours or is_full(each):
            return "disk", "disk", each
    return None


def is_of_the_host(error: BaseException) -> bool:
    """True if an error means that host memory ran out, for a tensor in the C library or an object in Python."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or _ON_THE_HOST.search(str(error)) is not None


def is_full(error: BaseException) -> bool:
    """True if a full disk caused an error; checkpoint writers wrap it, and each rank's error, in their own."""
    return any(
        "No space left on device" in str(each)
        or (isinstance(each, OSError) and each.errno in (errno.ENOSPC, errno.EDQUOT))
        for each in _chain(error)
    )


def _shortage(error: BaseException) -> tuple[Kind, Place] | None:
    if isinstance(error, torch.OutOfMemoryError):
        return ("budget", "device") if str(error).startswith("CPU out of memory") else ("device", "device")
    if is_of_the_host(error):
        return "allocator", "host"
    return ("device", "device") if _ON_THE_DEVICE.search(str(error)) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        each = waiting.pop(0)
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            failures = getattr(each, "failures", None)  # torch's CheckpointException has them by rank.
            inner = [item[0] for item in failures.values()] if isinstance(failures, dict) else []
            waiting += [cause for cause in (each.__cause__, each.__context__, *inner) if cause is not None]
