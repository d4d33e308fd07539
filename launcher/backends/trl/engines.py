"""The engine below TRL, which accelerate drives: FSDP2, DDP or DeepSpeed, by the preset; and its run as that engine's.

Formats, buffers and limits of sharding are those of the backends ``fsdp`` and ``deepspeed``, since it is the same torch
and the same DeepSpeed; :func:`as_engine` is the run that they are asked about.
"""

from __future__ import annotations

from typing import Literal

from launcher.backends import Backend
from launcher.base import registry
from launcher.spec import RunSpec, edit

type Engine = Literal["fsdp", "ddp", "deepspeed"]


def engine_of(spec: RunSpec) -> Engine:
    """The engine that accelerate drives: FSDP2 where parameters are sharded, DeepSpeed for the other ZeRO stages."""
    if spec.parallel.shard:
        return "fsdp"
    return "deepspeed" if spec.zero.stage else "ddp"


def backend_of(spec: RunSpec) -> Backend:
    """The backend of that engine."""
    found: Backend = registry.load("backends", "deepspeed" if engine_of(spec) == "deepspeed" else "fsdp")
    return found


def as_engine(spec: RunSpec) -> RunSpec:
    """The same run as its engine would have it, without TRL's own arguments.

    accelerate leaves ``DistributedDataParallel`` its defaults: gradients are no views of the buckets, of 25 MiB. The
    format of a reduction has no key there, and what a base is loaded in follows from the adapter.
    """
    name = "deepspeed" if engine_of(spec) == "deepspeed" else "fsdp"
    settings: dict[str, object] = {"backend.name": name, "backend.extra": {}}
    if engine_of(spec) == "ddp":
        settings["backend.bucket_view"] = False
    return edit.changed_at(spec, settings)
