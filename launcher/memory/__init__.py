"""The memory estimate: one public function per tensor class, put together by ``estimate``."""

from __future__ import annotations

from launcher.memory.breakdown import Breakdown, Column, breakdown
from launcher.memory.estimate import estimate, needs, rank_terms
from launcher.memory.result import (
    DiskSpace,
    HostMemory,
    MemoryEstimate,
    Needs,
    ParameterCount,
    Peak,
    PileBytes,
    RankPeak,
)

__all__ = [
    "Breakdown",
    "Column",
    "DiskSpace",
    "HostMemory",
    "MemoryEstimate",
    "Needs",
    "ParameterCount",
    "Peak",
    "PileBytes",
    "RankPeak",
    "breakdown",
    "estimate",
    "needs",
    "rank_terms",
]
