"""Describes a layout in the field's terms: ``Megatron · ZeRO-1 · tp 4 · pp 4 x 20 chunks · dp 4 · micro-batch 1``."""

from collections.abc import Iterator

from launcher import backends
from launcher.spec import RunSpec

BETWEEN = " · "  # Separates the parts of a layout.
_COPIES = "DDP"  # The engine whose name already says that it replicates the model states.


def engine(spec: RunSpec) -> str:
    """The engine's usual name: ``DDP``, ``FSDP``, ``HSDP``, ``DeepSpeed``, ``Megatron``, ``Megatron-FSDP``."""
    backend = backends.of(spec)
    return (backend.profile.called or backend.mode)(spec) or spec.backend.name


def layout(spec: RunSpec) -> str:
    """The whole layout in one line; degrees of one are left out, except for the micro-batch."""
    return BETWEEN.join((engine(spec), *_sharding(spec), *_degrees(spec), *_passes(spec)))


def sharding(spec: RunSpec) -> str:
    """The sharding of the model states by name: ``ZeRO-3``, ``FSDP``."""
    name = engine(spec)
    return name if spec.parallel.shard or name == _COPIES else f"ZeRO-{spec.zero.stage}"


def _sharding(spec: RunSpec) -> Iterator[str]:
    parallel, zero, reshards = spec.parallel, spec.zero, spec.backend.reshard_after_forward
    if not parallel.shard and engine(spec) != _COPIES:
        yield sharding(spec)
    elif parallel.shard and not (zero.stage == 3 if reshards is None else reshards):
        yield "no resharding"
    if parallel.replicate > 1:
        yield f"{parallel.replicate} replicas"
    if zero.hpz > 1:
        yield f"hpz {zero.hpz}"
    for place, where in (("cpu", "the host"), ("nvme", "the host's NVMe")):
        kept = [("parameters", zero.offload_parameters), ("optimizer", zero.offload_optimizer)]
        if there := [name for name, kind in kept if kind == place]:
            yield f"{' and '.join(there)} on {where}"


def _degrees(spec: RunSpec) -> Iterator[str]:
    parallel = spec.parallel
    if parallel.tensor > 1:
        yield f"tp {parallel.tensor}{' with sp' if parallel.sequence else ''}"
    if parallel.pipeline > 1:
        yield f"pp {parallel.pipeline}{_chunks(spec)}"
    ends = [size for size in (parallel.first_stage_layers, parallel.last_stage_layers) if size is not None]
    if ends:
        yield f"ends of {' and '.join(map(str, ends))} layers"
    for name, degree in (("cp", parallel.context), ("ulysses", parallel.ulysses), ("ep", parallel.expert)):
        if degree > 1:
            yield f"{name} {degree}"
    if parallel.expert_tensor not in (None, parallel.tensor):
        yield f"etp {parallel.expert_tensor}"
    if spec.data_degree > 1:
        yield f"dp {spec.data_degree}"


def _chunks(spec: RunSpec) -> str:
    parallel = spec.parallel
    if parallel.virtual_pipeline > 1:
        return f" x {parallel.virtual_pipeline} chunks"
    return "" if parallel.schedule == "1f1b" else f" ({parallel.schedule.replace('_', ' ')})"


def _passes(spec: RunSpec) -> Iterator[str]:
    yield f"micro-batch {spec.micro_batch_size}"
    if spec.checkpointing.mode != "none":
        yield f"{spec.checkpointing.mode} recompute"
    if spec.train.loss != "full":
        yield f"{spec.train.loss} loss"
    if spec.train.allocator != "default":
        yield f"{spec.train.allocator} allocator"
