"""The end of memory as torch's own message tells it (``CUDACachingAllocator.cpp``, 2.2 and newer), of any run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from launcher.base.units import bytes_of
from launcher.job.memory import OutOfMemory

_SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB)"
_REQUESTED = re.compile(rf"Tried to allocate {_SIZE}")
_CAPACITY = re.compile(rf"total capacity of {_SIZE}")
_FREE = re.compile(rf"of which {_SIZE} is free")
_OWN = re.compile(rf"this process has {_SIZE} memory in use")
_ALLOCATED = re.compile(rf"allocated memory {_SIZE} is allocated by PyTorch")
_UNUSED = re.compile(rf"and {_SIZE} is reserved by PyTorch but unallocated")
_OTHER = re.compile(rf"Process (\d+) has {_SIZE} memory in use")

_FUNCTIONS = re.compile(r"^\s*File \"(?P<file>[^\"]+)\", line \d+, in (?P<function>\S+)", re.MULTILINE)
_PHASES = (
    (re.compile(r"evaluate"), "evaluation"),
    (re.compile(r"backward"), "backward"),
    (re.compile(r"/optim/|optimizer|_update|clip_grad"), "optimizer"),
    (re.compile(r"save|checkpoint/state_dict"), "checkpoint_save"),
    (re.compile(r"forward|functional\.py|_call_impl"), "forward"),
    (re.compile(r"restore|build|load"), "load"),
)
"""Names in a traceback by the phase that they are of, the more special first."""


def ran_out(error: Mapping[str, Any]) -> OutOfMemory | None:
    """The end of memory that a rank's error tells of; None where it tells of something else."""
    message = str(error["message"])
    if error["type"] != "OutOfMemoryError" and "out of memory" not in message.lower():
        return None
    allocated, unused = _size(_ALLOCATED, message), _size(_UNUSED, message)
    others = tuple(
        {"pid": int(found[1]), "name": "", "bytes": _bytes(*found.groups()[1:])} for found in _OTHER.finditer(message)
    )
    on_host = "DefaultCPUAllocator" in message or "Cannot allocate memory" in message
    return OutOfMemory(
        kind="allocator" if on_host else "device",
        place="host" if on_host else "device",
        time=0.0,
        rank=None if error["rank"] is None else int(error["rank"]),
        node=error.get("node"),
        phase=phase_of(str(error["traceback"])),
        requested_bytes=_size(_REQUESTED, message) or _of_the_cpu(message),
        free_bytes=_size(_FREE, message),
        capacity_bytes=_size(_CAPACITY, message),
        allocated_bytes=allocated,
        reserved_bytes=None if allocated is None or unused is None else allocated + unused,
        others_bytes=_others(message),
        others=others,
        message=message,
    )


def of_a_reason(reason: str) -> OutOfMemory | None:
    """The end of memory in the reason of a script, the last line of its traceback; None where it has none."""
    if re.match(r"(\w+\.)*OutOfMemoryError: ", reason) is None:
        return None
    return ran_out({"rank": None, "type": "OutOfMemoryError", "message": reason, "traceback": ""})


def phase_of(traceback: str) -> str | None:
    """The phase that the functions of a traceback are of; None where none of them tells."""
    frames = [f"{found['file']} {found['function']}" for found in _FUNCTIONS.finditer(traceback)]
    return next((phase for pattern, phase in _PHASES if any(pattern.search(frame) for frame in frames)), None)


def _of_the_cpu(message: str) -> int | None:
    """``DefaultCPUAllocator: can't allocate memory: you tried to allocate 123 bytes.`` (``alloc_cpu.cpp``)."""
    found = re.search(r"tried to allocate (\d+) bytes", message)
    return int(found[1]) if found else None


def _others(message: str) -> int | None:
    """Bytes of the device that are neither free nor this process's."""
    capacity, free, own = (_size(each, message) for each in (_CAPACITY, _FREE, _OWN))
    return None if capacity is None or free is None or own is None else max(0, capacity - free - own)


def _size(pattern: re.Pattern[str], message: str) -> int | None:
    found = pattern.search(message)
    return None if found is None else _bytes(found[1], found[2])


def _bytes(number: str, unit: str) -> int:
    return int(float(number)) if unit == "bytes" else bytes_of(f"{number}{unit}") or 0
