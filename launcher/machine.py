"""Facts of this machine, and the pure function that puts them where the configuration says ``auto``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as NVML names it; the memory is the driver's total in bytes."""

    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this machine has."""

    gpus: tuple[Gpu, ...]
    host_memory_bytes: int
    disk_free_bytes: int | None
    cpus: int


def facts() -> Machine:
    """Ask this machine."""
    return Machine(
        gpus=(),
        host_memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        disk_free_bytes=shutil.disk_usage(Path.cwd()).free,
        cpus=os.cpu_count() or 1,
    )


def resolve(config: Mapping[str, Any], machine: Machine) -> dict[str, Any]:
    """Put this machine's facts in place of ``hardware=auto`` and of an unset number of ranks."""
    hardware, cluster = dict(config["hardware"]), dict(config["cluster"])
    if hardware["name"] == "auto":
        hardware |= {
            "device": "cpu",
            "title": "this machine's CPU",
            "host_memory_bytes": machine.host_memory_bytes,
            "disk_bytes": machine.disk_free_bytes,
        }
    if cluster["gpus_per_node"] is None:
        cluster["gpus_per_node"] = 8 if cluster["kind"] == "slurm" else len(machine.gpus) or 2
    return {**config, "hardware": hardware, "cluster": cluster}
