"""The keys of ``hardware``: one device and its node."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.spec.values import Count, Device


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSpec:
    """One device and its node. Sizes are bytes; ``None`` is unknown, and unknown refuses nothing."""

    name: str
    title: str
    device: Device
    memory_bytes: Count | None
    host_memory_bytes: Count | None
    disk_bytes: Count | None
    dtypes: tuple[str, ...]
    source: str
