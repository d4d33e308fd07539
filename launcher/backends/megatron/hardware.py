"""What Megatron-LM asks of a GPU: its compute capability."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.spec import HardwareSpec

_CAPABILITIES: Mapping[str, tuple[int, int]] = {
    "a100_40g": (8, 0),
    "a100_80g": (8, 0),
    "a10g": (8, 6),
    "b200": (10, 0),
    "gh200": (9, 0),
    "h100_80g": (9, 0),
    "h200": (9, 0),
    "l40s": (8, 9),
    "mi300x": (9, 4),
    "rtx3090": (8, 6),
    "rtx4090": (8, 9),
    "v100_16g": (7, 0),
    "v100_32g": (7, 0),
}
"""Compute capability by ``hardware=`` (developer.nvidia.com/cuda-gpus); what torch reports for gfx942 of AMD."""


def capability(hardware: HardwareSpec) -> tuple[int, int]:
    """The compute capability; for a GPU that is not in the table, the first that has its matrix formats.

    fp8 came with 8.9, bf16 with 8.0 and fp16 with 7.0 (CUDA C++ Programming Guide, "Compute Capabilities").
    """
    if hardware.name in _CAPABILITIES:
        return _CAPABILITIES[hardware.name]
    return (9, 0) if "fp8" in hardware.dtypes else (8, 0) if "bf16" in hardware.dtypes else (7, 0)
