"""Hand-written memory estimates, for tests of code that uses an estimate."""

from __future__ import annotations

from launcher.base import registry
from launcher.estimate.memory.estimate import RankTerms, rank_terms
from launcher.estimate.memory.result import (
    DiskSpace,
    HostMemory,
    MemoryEstimate,
    ParameterCount,
    Peak,
    PileBytes,
    RankPeak,
)
from launcher.spec import RunSpec

GIB = 2**30
CONTEXT = GIB


def estimate_of(*, low: int, needed: int, high: int, static: int = 8 * GIB, stage: int = 0) -> MemoryEstimate:
    """An estimate with one GiB of context and the given sizes, in bytes."""
    peak = Peak(
        allocated_bytes=low,
        needed_bytes=needed,
        reserved_bytes=needed,
        device_bytes=needed + CONTEXT,
        low_bytes=low,
        high_bytes=high,
        phase="backward",
        stage=stage,
    )
    quarter = needed // 4
    return MemoryEstimate(
        parameters=ParameterCount(total=10**9, active=10**9, per_rank=10**9 // 8),
        static_bytes=static,
        peak=peak,
        outside_bytes=CONTEXT,
        moments=(needed + CONTEXT,),
        phases={"load": quarter, "forward": low, "backward": low, "optimizer": quarter, "checkpoint_save": quarter},
        piles=(
            PileBytes(pile="parameters", bytes=quarter, formula="4 P / N", source="by hand"),
            PileBytes(pile="activations", bytes=needed - quarter, formula="34 s b h", source="by hand"),
            PileBytes(pile="context", bytes=CONTEXT, formula="1 GiB", source="by hand"),
        ),
        ranks=(RankPeak(stage=stage, static_bytes=static, allocated_bytes=low, reserved_bytes=needed),),
        host=HostMemory(bytes_per_node=0, capacity_bytes=None),
        disk=DiskSpace(checkpoint_bytes=GIB, kept_bytes=3 * GIB, capacity_bytes=None),
    )


def ranks_of(spec: RunSpec) -> tuple[RankTerms, ...]:
    """The terms of one rank of each stage."""
    return rank_terms(
        spec,
        family=registry.load("families", spec.model.family),
        strategies=[registry.load("strategies", name) for name in registry.names("strategies")],
        backend=registry.load("backends", spec.backend.name),
    )
