"""The keys of ``backend``, ``parallel`` and ``zero``: the engine, and how the run is laid out over its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from launcher.spec.values import Count, Natural, Offload, Positive, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """The engine that trains and the settings that only that engine has."""

    name: str
    reshard_after_forward: bool | None
    bucket_view: bool
    bucket_cap_mb: Positive
    path: str | None
    micro_step_sync: bool
    extra: Mapping[str, Any]

    def argument(self, name: str, default: Any = None) -> Any:
        """The engine's own argument from ``extra``, spelt there with dashes or underscores, or the default."""
        if not self.extra:
            return default
        spelt = {key.lstrip("-").replace("_", "-"): value for key, value in self.extra.items()}
        return spelt.get(name, default)

    def count(self, name: str) -> int | None:
        """The engine's own argument where it is a whole number above 0; what else it is its backend judges."""
        value = self.argument(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSpec:
    """Parallel degrees as plain words. The data degree is the rest of the world; see :class:`World`."""

    name: str
    tensor: Count
    pipeline: Count
    virtual_pipeline: Count
    first_stage_layers: Count | None
    last_stage_layers: Count | None
    context: Count
    expert: Count
    expert_tensor: Count | None
    sequence: bool
    ulysses: Count
    replicate: Count
    schedule: Literal["1f1b", "gpipe", "interleaved", "zero_bubble", "dualpipe"]
    shard: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSpec:
    """ZeRO stage, offload and DeepSpeed's buffers. Bucket sizes and thresholds are element counts, not bytes."""

    stage: Annotated[int, Range(low=0, high=3)]
    offload_optimizer: Offload
    offload_parameters: Offload
    nvme_path: str | None
    reduce_bucket_size: Count
    allgather_bucket_size: Count
    overlap_comm: bool | None
    prefetch_bucket_size: Natural
    max_live_parameters: Natural
    max_reuse_distance: Natural
    param_persistence_threshold: Natural
    sub_group_size: Natural
    hpz: Count
    gather_16bit_weights_on_save: bool
