"""The keys of ``hardware``: one device and its node."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.spec.values import Count, Device, Positive

HOPPER, BLACKWELL = 9.0, 10.0
"""Compute capabilities from which on engines take other kernels, workspaces and arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSpec:
    """One device and its node. Sizes are bytes; ``None`` is unknown, and unknown refuses nothing."""

    name: str
    title: str
    device: Device
    memory_bytes: Count | None
    host_memory_bytes: Count | None
    disk_bytes: Count | None
    compute_capability: Positive | None = None  # Runs that were recorded without it are read, too.
    dtypes: tuple[str, ...]
    source: str

    @property
    def effective_capability(self) -> float:
        """The compute capability; where it is unknown, the first that has the formats, and the backend says so.

        fp8 came with 8.9, bf16 with 8.0 and fp16 with 7.0 (CUDA C++ Programming Guide, "Compute Capabilities"). What
        is demanded before Blackwell runs on it too, so that an unknown GPU with fp8 counts as Hopper.
        """
        by_formats = HOPPER if "fp8" in self.dtypes else 8.0 if "bf16" in self.dtypes else 7.0
        return by_formats if self.compute_capability is None else self.compute_capability
