"""Host memory of a process, its node and its cgroup (1 and 2) at one moment, and what the kernel has killed for it."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Container, Iterator
from pathlib import Path

from launcher.base import machine
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.job.memory import HostMemory

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kills:
    """Counters of a process's cgroups and of the whole machine, to be compared with later ones."""

    known: bool  # True if a cgroup of version 2 counts, which counts everything below it: then nothing else was killed.
    group: int  # Processes of the cgroups that were killed for want of memory.
    limit: int  # Times that one of these cgroups met its own limit in vain.
    machine: int  # Processes of the machine that were killed for want of memory.


def memory() -> HostMemory | None:
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
    for folder, version in _groups():
        events = _numbers(folder / ("memory.events" if version == 2 else "memory.oom_control"))
        group += events.get("oom_kill", 0)
        known = known or (version == 2 and "oom_kill" in events)
        if version == 2:
            limit += events.get("oom", 0)
        else:
            limit += _number(folder / "memory.failcnt") or 0
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
    limited = [(limit, folder) for folder, limit in _limits() if limit < total]
    if not limited:
        return [int(folder.name) for folder in _PROC.glob("[0-9]*")]
    _, smallest = min(limited)
    return [pid for path in smallest.rglob("cgroup.procs") for pid in _inside(path)]


def _inside(path: Path) -> list[int]:
    """The processes of a group, which may be gone by now, or tell only its threads."""
    with contextlib.suppress(OSError, ValueError):
        return [int(pid) for pid in path.read_text().split()]
    return []


def _limits() -> Iterator[tuple[Path, int]]:
    for folder, version in _groups():
        limit = _number(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        if limit is not None:
            yield folder, limit


def _groups() -> Iterator[tuple[Path, int]]:
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):
        for line in (_PROC / "self" / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                group = Path(path.lstrip("/"))
                for folder in (group, *group.parents):
                    yield _CGROUPS / controllers / folder, 1 if controllers else 2


def _numbers(path: Path) -> dict[str, int]:
    with contextlib.suppress(OSError):
        return {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", path.read_text(), re.MULTILINE)}
    return {}


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError):
        text = path.read_text().strip()
        return int(text) if text.isdecimal() else None
    return None
