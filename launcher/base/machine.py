"""Facts about this machine: its GPUs through NVML, its host memory, disk and CPUs.

Nothing is read on import; a machine without a GPU or driver is a valid answer, not an error.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from launcher.base.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as NVML reports it."""

    name: str  # Its product name.
    memory_bytes: int  # The driver's total.
    reserved_bytes: int | None  # The part that driver and firmware reserve; None if the driver does not report it.
    compute_capability: float  # Major and minor version, as 9.0.


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Resources that this machine has and this process may use; ``None`` is unknown."""

    gpus: tuple[Gpu, ...]
    host_memory_bytes: int
    disk_free_bytes: int | None
    cpus: int


def label() -> str:
    """Return the host's name as a part of a file name: host names may contain slashes and non-ASCII characters."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", os.uname().nodename)[:64]


def facts() -> Machine:
    """Return this machine's facts: GPUs visible to CUDA, memory allowed by the cgroup, the working folder's disk."""
    return Machine(
        gpus=_gpus(os.environ.get("CUDA_VISIBLE_DEVICES")),
        host_memory_bytes=host_memory(),
        disk_free_bytes=disk_free(Path.cwd()),
        cpus=_cpus(),
    )


def _gpus(visible: str | None) -> tuple[Gpu, ...]:
    if not _driver():
        return ()
    import pynvml  # Imported late: it takes 0.08 s, which a machine without a driver need not spend.

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError):
        return ()
    try:
        found = [entry for index in range(pynvml.nvmlDeviceGetCount()) for entry in _devices(pynvml, index)]
        return tuple(found[position][1] for position in _visible([uuid for uuid, _ in found], visible))
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


_DEVICES = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg")
"""One of these exists if a driver is loaded: NVIDIA's own, that of Tegra systems, and WSL 2's."""


def _driver() -> bool:
    """True if the library that ``pynvml`` loads on Linux exists; on other systems ``pynvml`` must look itself."""
    if sys.platform != "linux":
        return True
    if not any(map(os.path.exists, _DEVICES)):
        return False
    try:
        import ctypes  # Imported late: only this needs it.

        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def _devices(nvml: ModuleType, index: int) -> Iterator[tuple[str, Gpu]]:
    """One GPU, or its MIG slices instead: CUDA shows only the slices, each with its own memory."""
    parent = nvml.nvmlDeviceGetHandleByIndex(index)
    capability = float("{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(parent)))
    for handle in _slices(nvml, parent) or [parent]:
        gpu = Gpu(
            name=nvml.nvmlDeviceGetName(handle),
            memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
            reserved_bytes=_reserved(nvml, handle),
            compute_capability=capability,
        )
        yield nvml.nvmlDeviceGetUUID(handle), gpu


def _reserved(nvml: ModuleType, handle: object) -> int | None:
    """Reserved bytes from version 2 of NVML's memory info, which drivers before 510 lack."""
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).reserved)
    except nvml.NVMLError:
        return None


def _slices(nvml: ModuleType, parent: object) -> list[object]:
    try:
        if not nvml.nvmlDeviceGetMigMode(parent)[0]:
            return []
    except nvml.NVMLError:
        return []  # Most GPUs do not support MIG, which NVML reports as an error.
    slices = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(parent)):
        try:
            slices.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, number))
        except nvml.NVMLError:
            continue  # An empty slot.
    return slices


def _visible(uuids: Sequence[str], visible: str | None) -> list[int]:
    """Indices that CUDA shows: it stops at the first entry that names no device (CUDA C++ programming guide)."""
    if visible is None:
        return list(range(len(uuids)))
    positions: list[int] = []
    for entry in visible.split(","):
        word = entry.strip()
        named = (
            [int(word)] if word.isdecimal() else [at for at, uuid in enumerate(uuids) if word and uuid.startswith(word)]
        )
        if not named or named[0] >= len(uuids):
            break
        positions.append(named[0])
    return positions


_CGROUPS, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def host_memory(cgroups: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> int:
    """Return the bytes of memory that this process may use: the machine's, or less if a cgroup (v1 or v2) limits it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *(limit for limit, _, _ in limited_groups(cgroups, membership))])


def memory_groups(cgroups: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of the cgroups that count this process's memory, up to the root, and True for version 1."""
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            group = Path(path.lstrip("/"))
            yield from ((cgroups / controllers / folder, bool(controllers)) for folder in (group, *group.parents))


def limited_groups(cgroups: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> Iterator[tuple[int, Path, bool]]:
    """Yield the cgroups that limit this process's memory: bytes, folder, and True for version 1."""
    for folder, is_first in memory_groups(cgroups, membership):
        text = _read(folder / ("memory.limit_in_bytes" if is_first else "memory.max")).strip()
        if text.isdecimal():  # Version 2 has "max" for no limit.
            yield int(text), folder, is_first


def memory_in_use(
    cgroups: Path = _CGROUPS, membership: Path = _MEMBERSHIP, meminfo: Path = Path("/proc/meminfo")
) -> tuple[int, int] | None:
    """Return used and total bytes of host memory, of the cgroup with the least left, or of the machine.

    Inactive file pages do not count as used: the kernel reclaims them before anything fails. None if unknown.
    """
    answers = [_machine_in_use(meminfo)]
    answers += [_group_in_use(*group) for group in limited_groups(cgroups, membership)]
    known = [answer for answer in answers if answer is not None and answer[1] > 0]
    return min(known, key=lambda answer: answer[1] - answer[0], default=None)


def _machine_in_use(meminfo: Path) -> tuple[int, int] | None:
    """Linux ``Documentation/filesystems/proc.rst``: ``MemAvailable`` is what new processes can use, in KiB."""
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _read(meminfo), re.MULTILINE))
    if "MemTotal" not in found or "MemAvailable" not in found:
        return None
    total, available = int(found["MemTotal"]) * 1024, int(found["MemAvailable"]) * 1024
    return total - available, total


def _group_in_use(limit: int, folder: Path, first_version: bool) -> tuple[int, int] | None:
    """Linux ``Documentation/admin-guide/cgroup-v1/memory.rst`` and ``cgroup-v2.rst``; v1 includes its children."""
    used = _read(folder / ("memory.usage_in_bytes" if first_version else "memory.current")).strip()
    if not used.isdecimal():
        return None
    name = "total_inactive_file" if first_version else "inactive_file"
    idle = re.search(rf"^{name} (\d+)$", _read(folder / "memory.stat"), re.MULTILINE)
    return max(0, int(used) - (int(idle[1]) if idle else 0)), limit


def process_memory(status: Path = Path("/proc/self/status")) -> int | None:
    """Return a process's resident bytes without file pages, which the kernel can reclaim; None if unknown."""
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _read(status), re.MULTILINE))
    if "RssAnon" not in found:  # Available since Linux 4.5.
        return None
    return (int(found["RssAnon"]) + int(found.get("RssShmem", 0))) * 1024


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def disk_free(folder: Path) -> int | None:
    """Return the free bytes of the disk that a folder is, or would be, on; None if unknown."""
    try:
        disk = os.statvfs(_existing(folder))
        return disk.f_bavail * disk.f_frsize
    except OSError:
        return None


def another_disk(folder: Path) -> bool:
    """True if a folder is, or would be, on another disk than the working folder."""
    try:
        return _existing(folder).stat().st_dev != Path.cwd().stat().st_dev
    except OSError:
        return False


def _existing(folder: Path) -> Path:
    return next((place for place in (folder, *folder.parents) if place.exists()), Path())


def _cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # Available only on Linux.
        return os.cpu_count() or 1


def cxx() -> str | None:
    """Return the C++ compiler that torch.compile uses on the CPU, ``CXX`` or ``g++``; None if there is none."""
    import shutil  # Imported late: it imports five modules.

    return shutil.which(os.environ.get("CXX", "g++"))


def node() -> str:
    """Return this node's name, on Slurm the one that Slurm uses: the host name may be longer."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def processor() -> str | None:
    """Return the CPU's product name from ``/proc/cpuinfo``; None if it has none."""
    found = re.search(r"^model name\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    return found[1].strip() if found else None
