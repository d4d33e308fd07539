"""The compute capability of a GPU, which decides on kernels, workspaces and arguments."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from launcher.spec import HardwareSpec

HOPPER, BLACKWELL = (9, 0), (10, 0)

_CAPABILITIES: Mapping[str, tuple[int, int]] = {
    "a100": (8, 0),
    "a10g": (8, 6),
    "b200": BLACKWELL,
    "gb200": BLACKWELL,
    "gh200": HOPPER,
    "h100": HOPPER,
    "h200": HOPPER,
    "l40s": (8, 9),
    "mi300x": (9, 4),
    "rtx3090": (8, 6),
    "rtx4090": (8, 9),
    "v100": (7, 0),
}
"""By the begin of ``hardware.name`` (developer.nvidia.com/cuda-gpus); what torch reports for gfx942 of AMD."""


def known(hardware: HardwareSpec) -> tuple[int, int] | None:
    """The compute capability of a GPU by its name; None for another name."""
    return _by_name(hardware.name)


@cache
def _by_name(hardware: str) -> tuple[int, int] | None:
    return next((found for name, found in _CAPABILITIES.items() if hardware.startswith(name)), None)


def capability(hardware: HardwareSpec) -> tuple[int, int]:
    """The compute capability; for a GPU that is not in the table, the first that has its matrix formats.

    fp8 came with 8.9, bf16 with 8.0 and fp16 with 7.0 (CUDA C++ Programming Guide, "Compute Capabilities").
    """
    by_formats = HOPPER if "fp8" in hardware.dtypes else (8, 0) if "bf16" in hardware.dtypes else (7, 0)
    return known(hardware) or by_formats
