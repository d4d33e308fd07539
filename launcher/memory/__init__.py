"""The memory estimate: one public function per tensor class, put together by ``estimate``."""

from __future__ import annotations

from launcher.memory.estimate import estimate
from launcher.memory.result import (
    DiskSpace,
    HostMemory,
    MemoryEstimate,
    ParameterCount,
    Peak,
    PileBytes,
    RankPeak,
)

__all__ = [
    "DiskSpace",
    "HostMemory",
    "MemoryEstimate",
    "ParameterCount",
    "Peak",
    "PileBytes",
    "RankPeak",
    "estimate",
]
