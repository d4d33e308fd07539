"""Measured memory: ``memory.jsonl``, ``oom.json``, a rehearsal's result, and this node's memory at one moment.

All sizes are bytes; piles are those of ``launch check``. What an engine, a device or a machine (``/proc``, cgroups 1
and 2) does not report is null. A rehearsed rank (``python -m launcher.worker.rehearse``) gets a folder like a run
directory; it exits with 0 and a :class:`Rehearsed`, even if it ran out of memory, else with 2 and an ``error``.
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
"""Bytes read from the file's end until they contain a whole step: of some forty, hundreds or thousands of ranks."""

type Place = Literal["device", "host", "disk"]
"""What was full: a rank's device memory (on the CPU its budget), a node's host memory, or a disk."""

type Kind = Literal["device", "budget", "allocator", "host_killer", "cgroup", "slurm", "disk"]
"""Who reported it: torch's allocator on a GPU, our own tracker on the CPU, the C library (no memory for a CPU tensor),
the kernel's OOM killer, a cgroup's limit, Slurm (``OUT_OF_MEMORY``), or a write that found no space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMemory:
    """The peak of one phase of one rank."""

    allocated_bytes: int  # Live bytes at the peak.
    piles: Mapping[str, int]  # The same bytes by pile.


@dataclass(frozen=True, slots=True, kw_only=True)
class PileRow:
    """Predicted and measured bytes of one pile; None is unknown."""

    pile: str
    predicted_bytes: int | None
    measured_bytes: int | None

    @property
    def sizes(self) -> Pair[int]:
        """Predicted and measured as a pair."""
        return Pair(self.predicted_bytes, self.measured_bytes)

    @property
    def grown_bytes(self) -> int:
        """Measured minus predicted bytes; 0 if either is unknown."""
        return self.sizes.difference or 0

    @property
    def largest_bytes(self) -> int:
        """The larger of predicted and measured bytes."""
        return max(self.predicted_bytes or 0, self.measured_bytes or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Host memory at one moment."""

    rank_bytes: int  # Resident memory of the rank's process.
    node_used_bytes: int | None = None  # In use on the node, or in the job's cgroup if that has a limit.
    node_bytes: int | None = None  # Capacity of the node, or of that cgroup; None is unknown.


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """A line of ``memory.jsonl``: one rank at one sampled step."""

    step: int  # Counted from 1; 0 is the loading of the model.
    rank: int  # Rank in the job.
    node: str  # The name of its machine.
    time: float  # Unix time, in seconds.
    tokens: int | None  # Tokens of the rank's micro-batch.
    # Peaks of the measured phases: ``load``, ``forward``, ``backward``, ``optimizer``, ``checkpoint_save``,
    # ``evaluation``.
    phases: Mapping[str, PhaseMemory]
    static: Mapping[str, int] | None = None  # Live piles between two steps; None if not measured.
    reserved_bytes: int | None = None  # Peak reserved by the caching allocator; None on the CPU.
    device_used_bytes: int | None = None  # In use on the whole device, by all processes; None on the CPU.
    # What a rank may use there: the device, or on the CPU the budget if one was given.
    device_bytes: int | None = None
    host: HostMemory | None = None  # Host memory.

    @property
    def trained(self) -> bool:
        """True for a training step; a save or an evaluation has its own line."""
        return "forward" in self.phases or "backward" in self.phases

    def as_dict(self) -> JsonObject:
        """The line as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One of the largest live allocations when memory ran out."""

    bytes: int  # Its size.
    pile: str  # What it belongs to.
    operation: str | None = None  # The operation that made it, ``aten.mm.default``; None is unknown.
    shape: tuple[int, ...] | None = None  # Shape of its tensor, if known.
    layer: int | None = None  # The number of the block that made it; None outside blocks.


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """``oom.json``: the first rank, or node, of a run that ran out of memory."""

    kind: Kind  # Who reported it.
    place: Place  # What was full.
    time: float  # Unix time, in seconds.
    rank: int | None  # Rank in the job; None if a node or Slurm reports for all of its ranks.
    node: str | None  # The name of the machine.
    step: int | None = None  # The current step; 0 while the model was loaded.
    phase: str | None = None  # As in :class:`MemoryRecord`; None is unknown.
    layer: int | None = None  # The number of the running block; None outside blocks, or unknown.
    operation: str | None = None  # The requesting operation, ``aten.mm.default``, or the file being written.
    requested_bytes: int | None = None  # Bytes requested.
    free_bytes: int | None = None  # Bytes free in the place.
    capacity_bytes: int | None = None  # Capacity of the place.
    allocated_bytes: int | None = None  # Allocated by this rank at that moment.
    reserved_bytes: int | None = None  # Reserved by its caching allocator; None on the CPU.
    others_bytes: int | None = None  # In use by other processes in the place; None is unknown.
    others: tuple[Mapping[str, Any], ...] = ()  # Those processes, largest first: ``pid``, ``name``, ``bytes``.
    tokens: int | None = None  # Tokens of the current micro-batch.
    piles: Mapping[str, int] = field(default_factory=dict)  # Live bytes by pile; they sum to ``allocated_bytes``.
    largest: tuple[Held, ...] = ()  # The largest live allocations.
    host: HostMemory | None = None  # Host memory at that moment.
    last: MemoryRecord | None = None  # The rank's latest line of ``memory.jsonl``, or what it had gathered since.
    snapshot: str | None = None  # A file below the run directory with all allocations: torch's own format on a GPU.
    message: str = ""  # The original error message.

    def as_dict(self) -> JsonObject:
        """The document with its schema."""
        return {"schema": 1, **asdict(self)}


def records(directory: Path) -> Iterator[MemoryRecord]:
    """The complete lines of ``memory.jsonl``, in order; none if there is no file."""
    with contextlib.suppress(OSError), io.TextIOWrapper(files.opened(directory / RECORDS), errors="replace") as file:
        yield from _read_lines(file)


def newest(directory: Path) -> list[MemoryRecord]:
    """The complete lines at the end of ``memory.jsonl``, oldest first: the latest training step of all ranks."""
    for size in _END_BYTES:
        found = list(_read_lines(files.last_lines(directory / RECORDS, size)))
        if len({each.step for each in found if each.trained}) > 1:  # The latest of them is complete.
            break
    return found


def ran_out(directory: Path) -> OutOfMemory | None:
    """The content of ``oom.json``; None if it is missing or unreadable."""
    content = files.read_json(directory / OUT_OF_MEMORY)
    try:
        return None if content is None else typed.read(OutOfMemory, content)
    except typed.Unfit:
        return None


SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB)"  # As in the messages of torch's allocators.
_REQUESTED = re.compile(rf"[Tt]ried to allocate {SIZE}")  # In lower case from the CPU's (alloc_cpu.cpp).


def asked_bytes(message: str) -> int | None:
    """The bytes requested from an allocator, from its error message."""
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
    """Peaks of one phase in bytes; None if the device does not report it."""

    allocated_bytes: int  # ``torch.cuda.max_memory_allocated``; on the CPU the bytes of live tensors.
    reserved_bytes: int | None = None  # ``torch.cuda.max_memory_reserved``.
    device_bytes: int | None = None  # The process's use of the device, including its context.
    piles: Mapping[str, int] | None = None  # The allocated bytes by pile, if they were attributed.


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """The result of one rehearsed rank."""

    rank: int  # Rank in the run.
    world: int  # Ranks of the run.
    stage: int  # Its pipeline stage.
    layers: int  # Layers of the model as built.
    device: str  # ``cpu`` or ``cuda``.
    device_name: str  # The GPU's name, or the processor's.
    method: str  # How memory was measured, for a person.
    static_bytes: int | None  # Allocated between two steps.
    phases: Mapping[str, RehearsedPhase]  # Peaks of the measured phases.
    step_seconds: tuple[float, ...]  # Seconds of each step that was only timed; communication takes no time.
    ran_out: bool  # True if memory ran out first.
    versions: Mapping[str, str]  # Versions of the packages involved.

    def as_dict(self) -> JsonObject:
        """The document."""
        return {"schema": 1, **asdict(self)}


_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kills:
    """OOM counters of a process's cgroups and of the whole machine, to compare with later ones."""

    known: bool  # True if a version 2 cgroup counts; it covers everything below it, so nothing else was killed.
    group: int  # Processes of the cgroups that the OOM killer ended.
    limit: int  # Times that one of these cgroups hit its own limit and could not reclaim.
    machine: int  # Processes of the machine that the OOM killer ended.


def host_memory() -> HostMemory | None:
    """Host memory of this process and its node now; None if it is not reported."""
    own, node = machine.process_memory(), machine.memory_in_use()
    if own is None or node is None:
        return None
    return HostMemory(rank_bytes=own, node_used_bytes=node[0], node_bytes=node[1])


def biggest(*, without: Container[int] = (), count: int = 5) -> tuple[JsonObject, ...]:
    """The processes of this node, or of this cgroup if it has a limit, largest resident memory first."""
    found: list[JsonObject] = []
    for pid in _processes():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if pid not in without:
                folder = _PROC / str(pid)
                pages = int((folder / "statm").read_text().split()[1])
                found.append({"pid": pid, "name": _name(folder), "bytes": pages * os.sysconf("SC_PAGE_SIZE")})
    found.sort(key=lambda process: -int(process["bytes"]))
    return tuple(process for process in found[:count] if process["bytes"])


def kills() -> Kills:
    """The current counters."""
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
    """The processes of a group; none if it is gone or lists only threads."""
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
