"""Measured memory: ``memory.jsonl``, ``oom.json``, what a rehearsal wrote, and the memory of this node at one moment.

Bytes everywhere; piles are those of ``launch check``. Whatever an engine, a device or a machine (``/proc``, cgroups 1
and 2) does not tell is null. A rehearsed rank (``python -m launcher.worker.rehearse``) is given a folder like a run
directory; its exit status is 0 with a :class:`Rehearsed`, also one that ran out of memory, else 2 with an ``error``.
"""

import contextlib
import io
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, Literal

from launcher.base import files, machine, typed
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.units import Pair, bytes_of

RECORDS = "memory.jsonl"
OUT_OF_MEMORY = "oom.json"
_END_BYTES = (1 << 16, 1 << 19, 1 << 22)
"""Read of the file's end, until a whole step is in it: some forty ranks, hundreds, or thousands."""

type Place = Literal["device", "host", "disk"]
"""What was full: the memory of a rank's device (on the CPU its budget), a node's host memory, or a disk."""

type Kind = Literal["device", "budget", "allocator", "host_killer", "cgroup", "slurm", "disk"]
"""Who said so: torch's allocator on a GPU, our own follower on the CPU, the C library (no memory for a CPU tensor), the
kernel's killer, a cgroup's limit, Slurm (``OUT_OF_MEMORY``), or a write that found no space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMemory:
    """The peak of one phase of one rank."""

    allocated_bytes: int  # Alive at the peak.
    piles: Mapping[str, int]  # The same, by pile; they sum to it.


@dataclass(frozen=True, slots=True, kw_only=True)
class PileRow:
    """The bytes of one pile, predicted beside measured; None is unknown."""

    pile: str
    predicted_bytes: int | None
    measured_bytes: int | None

    @property
    def sizes(self) -> Pair[int]:
        """Both as one."""
        return Pair(self.predicted_bytes, self.measured_bytes)

    @property
    def grown_bytes(self) -> int:
        """Bytes beyond the prediction, negative below it; 0 where one of the two is unknown."""
        return self.sizes.difference or 0

    @property
    def largest_bytes(self) -> int:
        """The larger of both."""
        return max(self.predicted_bytes or 0, self.measured_bytes or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Host memory at one moment."""

    rank_bytes: int  # Resident memory of the rank's process.
    node_used_bytes: int | None = None  # In use on the node, or in the job's cgroup where that has a limit.
    node_bytes: int | None = None  # What the node, or that cgroup, has; None is unknown.


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """A line of ``memory.jsonl``: one rank in one sampled step."""

    step: int  # Counted from 1; 0 is the loading of the model.
    rank: int  # Of the job.
    node: str  # The name of its machine.
    time: float  # Of day, in seconds.
    tokens: int | None  # Of the rank's micro-batch.
    # Peaks by phase: ``load``, ``forward``, ``backward``, ``optimizer``, ``checkpoint_save``, ``evaluation``, those
    # that were measured.
    phases: Mapping[str, PhaseMemory]
    static: Mapping[str, int] | None = None  # Piles that are alive between two steps; None where that was not measured.
    reserved_bytes: int | None = None  # Peak that the caching allocator has reserved; None on the CPU.
    device_used_bytes: int | None = None  # In use on the whole device, by all processes; None on the CPU.
    # What a rank may use there: the device, or on the CPU the budget where one was given.
    device_bytes: int | None = None
    host: HostMemory | None = None  # Host memory.

    @property
    def trained(self) -> bool:
        """True for a step; a save or an evaluation has a line of its own."""
        return "forward" in self.phases or "backward" in self.phases

    def as_dict(self) -> JsonObject:
        """The line as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One of the largest allocations that were alive when memory ran out."""

    bytes: int  # Its size.
    pile: str  # What it belongs to.
    operation: str | None = None  # What made it, ``aten.mm.default``; None is unknown.
    shape: tuple[int, ...] | None = None  # Of its tensor, where it is known.
    layer: int | None = None  # The number of the block that made it; None outside of blocks.


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """``oom.json``: the first rank, or node, of a run that ran out of memory."""

    kind: Kind  # Who said so.
    place: Place  # What was full.
    time: float  # Of day, in seconds.
    rank: int | None  # Of the job; None where a node or Slurm speaks for all of its ranks.
    node: str | None  # The name of the machine.
    step: int | None = None  # That was being done; 0 while the model was loaded.
    phase: str | None = None  # As in :class:`MemoryRecord`; None is unknown.
    layer: int | None = None  # The number of the block that ran; None outside of blocks, or unknown.
    operation: str | None = None  # What asked, ``aten.mm.default``, or the file that was being written.
    requested_bytes: int | None = None  # That were asked for.
    free_bytes: int | None = None  # That the place had left for it.
    capacity_bytes: int | None = None  # Of the place.
    allocated_bytes: int | None = None  # Of this rank at that moment.
    reserved_bytes: int | None = None  # By its caching allocator; None on the CPU.
    others_bytes: int | None = None  # Of the place, in use by other processes; None is unknown.
    others: tuple[Mapping[str, Any], ...] = ()  # Those processes, the largest first: ``pid``, ``name``, ``bytes``.
    tokens: int | None = None  # Of the micro-batch that was worked on.
    piles: Mapping[str, int] = field(default_factory=dict)  # What was alive, by pile; they sum to ``allocated_bytes``.
    largest: tuple[Held, ...] = ()  # The largest allocations that were alive.
    host: HostMemory | None = None  # Host memory then.
    last: MemoryRecord | None = None  # The rank's newest line of ``memory.jsonl``, or what it had gathered since.
    snapshot: str | None = None  # A file below the run directory with all allocations: torch's own format on a GPU.
    message: str = ""  # The words of whoever said it.

    def as_dict(self) -> JsonObject:
        """The document, with its schema."""
        return {"schema": 1, **asdict(self)}


def records(directory: Path) -> Iterator[MemoryRecord]:
    """The whole lines of ``memory.jsonl``, in the order in which they were written; none where there is no file."""
    with contextlib.suppress(OSError), io.TextIOWrapper(files.opened(directory / RECORDS), errors="replace") as file:
        yield from _read_lines(file)


def newest(directory: Path) -> list[MemoryRecord]:
    """The whole lines at the end of ``memory.jsonl``, oldest first: the newest step that trained, of all ranks."""
    for size in _END_BYTES:
        found = list(_read_lines(files.last_lines(directory / RECORDS, size)))
        if len({each.step for each in found if each.trained}) > 1:  # The newest of them is whole.
            break
    return found


def ran_out(directory: Path) -> OutOfMemory | None:
    """The content of ``oom.json``; None where there is none that can be read."""
    content = files.read_json(directory / OUT_OF_MEMORY)
    try:
        return None if content is None else typed.read(OutOfMemory, content)
    except typed.Unfit:
        return None


SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB)"  # As the messages of torch's allocators have it.
_REQUESTED = re.compile(rf"[Tt]ried to allocate {SIZE}")  # Of a GPU's; the small letter is the CPU's (alloc_cpu.cpp).


def asked_bytes(message: str) -> int | None:
    """The bytes that an allocator was asked for, by its message."""
    return size_in(_REQUESTED, message)


def size_in(pattern: re.Pattern[str], message: str) -> int | None:
    """The bytes of the first :data:`SIZE` that a pattern finds in a message."""
    found = pattern.search(message)
    return None if found is None else in_bytes(found[1], found[2])


def in_bytes(number: str, unit: str) -> int:
    """A number and a unit of :data:`SIZE` in bytes."""
    return int(float(number) * (bytes_of(f"1{unit}") or 1))


def _read_lines(lines: Iterable[str]) -> Iterator[MemoryRecord]:
    for content in files.json_objects(lines):
        with contextlib.suppress(typed.Unfit):
            yield typed.read(MemoryRecord, content)


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedPhase:
    """Peaks of one phase in bytes; None where the device does not tell."""

    allocated_bytes: int  # ``torch.cuda.max_memory_allocated``; on the CPU the bytes of live tensors.
    reserved_bytes: int | None = None  # ``torch.cuda.max_memory_reserved``.
    device_bytes: int | None = None  # Of the process on the device, its context included.
    piles: Mapping[str, int] | None = None  # The allocated bytes by pile, where they were told apart.


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """One rank."""

    rank: int  # Of the run's.
    world: int  # Ranks of the run.
    stage: int  # Its pipeline stage.
    layers: int  # Of the model as it was built.
    device: str  # ``cpu`` or ``cuda``.
    device_name: str  # The GPU's name, or the processor's.
    method: str  # How memory was measured, for a person.
    static_bytes: int | None  # Allocated between two steps.
    phases: Mapping[str, RehearsedPhase]  # By phase, those that were measured.
    step_seconds: tuple[float, ...]  # Of each step that was only timed; communication takes no time.
    ran_out: bool  # True where memory ended first.
    versions: Mapping[str, str]  # Of the packages that took part.

    def as_dict(self) -> JsonObject:
        """The document."""
        return {"schema": 1, **asdict(self)}


_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kills:
    """Counters of a process's cgroups and of the whole machine, to be compared with later ones."""

    known: bool  # True if a cgroup of version 2 counts, which counts everything below it: then nothing else was killed.
    group: int  # Processes of the cgroups that were killed for want of memory.
    limit: int  # Times that one of these cgroups met its own limit in vain.
    machine: int  # Processes of the machine that were killed for want of memory.


def host_memory() -> HostMemory | None:
    """Host memory of this process and its node now; None where that is not told."""
    own, node = machine.process_memory(), machine.memory_in_use()
    if own is None or node is None:
        return None
    return HostMemory(rank_bytes=own, node_used_bytes=node[0], node_bytes=node[1])


def biggest(*, without: Container[int] = (), count: int = 5) -> tuple[JsonObject, ...]:
    """The processes of this node, or of this cgroup where that has a limit, with the most resident memory first."""
    found: list[JsonObject] = []
    for pid in _processes():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if pid not in without:
                folder = _PROC / str(pid)
                found.append({"pid": pid, "name": _name(folder), "bytes": _resident(folder)})
    found.sort(key=lambda process: -int(process["bytes"]))
    return tuple(process for process in found[:count] if process["bytes"])


def kills() -> Kills:
    """The counters now."""
    known, group, limit = False, 0, 0
    for folder, is_first in machine.memory_groups():
        events = _numbers(folder / ("memory.oom_control" if is_first else "memory.events"))
        group += events.get("oom_kill", 0)
        known = known or (not is_first and "oom_kill" in events)
        limit += (_number(folder / "memory.failcnt") or 0) if is_first else events.get("oom", 0)
    return Kills(known=known, group=group, limit=limit, machine=_numbers(_PROC / "vmstat").get("oom_kill", 0))


def name_of(pid: int) -> str:
    """The name of a process: its program, and for Python the module or script that it runs."""
    with contextlib.suppress(OSError):
        return _name(_PROC / str(pid))
    return ""


def _resident(folder: Path) -> int:
    return int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _name(folder: Path) -> str:
    words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
    name = (folder / "comm").read_text().strip()
    if "python" in name and "-m" in words[:-1]:
        return f"{name} -m {words[words.index('-m') + 1]}"
    script = next((word for word in words[1:] if word.endswith(".py")), None)
    return f"{name} {Path(script).name}" if script is not None and "python" in name else name


def _processes() -> list[int]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limited = [(limit, folder) for limit, folder, _ in machine.limited_groups() if limit < total]
    if not limited:
        return [int(folder.name) for folder in _PROC.glob("[0-9]*")]
    _, smallest = min(limited)
    return [pid for path in smallest.rglob("cgroup.procs") for pid in _inside(path)]


def _inside(path: Path) -> list[int]:
    """The processes of a group, which may be gone by now, or tell only its threads."""
    with contextlib.suppress(OSError, ValueError):
        return [int(pid) for pid in path.read_text().split()]
    return []


def _numbers(path: Path) -> dict[str, int]:
    with contextlib.suppress(OSError):
        return {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", path.read_text(), re.MULTILINE)}
    return {}


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError):
        text = path.read_text().strip()
        return int(text) if text.isdecimal() else None
    return None
