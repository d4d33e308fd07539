"""The parts of a run's mode that measured runs back: how its engine shards the model, and how it computes.

A part of a run's mode has evidence if a measured run has it (the rows of the scoreboards, Megatron-LM's recorded
tests), or a run of the engine's own worker that trained on CPU ranks. ``modes.json`` counts these runs by engine, by
its way to shard the model states, and by part; a part that is missing there has no evidence. Sharding and the degrees
of parallelism are looked up among runs of the same way, which share its buffers and groups; number formats, optimizer,
recomputation and loss among all runs of the engine. Model, sizes and kernels are not parts of a mode: the scoreboards
show how accurate those are.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from launcher.base import files
from launcher.spec import RunSpec

MODES = Path(__file__).with_name("modes.json")  # Written by ``python -m benchmarks.evidence --data DIR --runs DIR``.

_DEGREES = {
    "tensor": "tensor parallelism",
    "context": "context parallelism",
    "ulysses": "Ulysses",
    "expert": "expert parallelism",
}


def unmeasured(spec: RunSpec, engine: str, way: str | None) -> tuple[str, ...]:
    """The parts of a run's mode that no measured run backs; none where no evidence was collected for its way."""
    if way is None:
        return ()
    ways: Mapping[str, Mapping[str, object]] = files.own_json(MODES)["engines"].get(engine, {})
    shared, computed = ways.get(way, {}), set[str]().union(*ways.values())
    lacking = [f"{part} of {way}" for part in sharing(spec) if part not in shared]
    return (*lacking, *(part for part in computing(spec) if part not in computed))


def sharing(spec: RunSpec) -> Iterator[str]:
    """What is sharded and over which ranks, in words."""
    yield from _sharding(spec)
    parallel = spec.parallel
    for axis, name in _DEGREES.items():
        if getattr(parallel, axis) > 1:
            yield name
    span = parallel.expert * (parallel.expert_tensor or parallel.tensor)
    nodes = -(-span // max(spec.cluster.gpus_per_node, spec.hardware.link_gpus or 0))
    if parallel.expert > 1 and nodes > 1:  # A rack on one NVLink counts as a node; 3 nodes count as up to 4.
        yield f"experts over up to {1 << (nodes - 1).bit_length()} nodes"
    if parallel.sequence and parallel.tensor > 1:
        yield "sequence parallelism"
    if parallel.expert > 1 and parallel.expert_tensor not in (None, parallel.tensor):
        yield "tensor ranks of their own for experts"
    if parallel.pipeline > 1:
        yield f"the schedule {parallel.schedule}"
    if parallel.virtual_pipeline > 1:
        fewer = parallel.virtual_pipeline // 2 * 2  # 4 and 5 chunks are one part, and so on.
        yield f"{fewer} or {fewer + 1} model chunks on a stage"


def computing(spec: RunSpec) -> Iterator[str]:
    """Recomputation, loss, precision, optimizer and adapter of a run, in words."""
    if spec.checkpointing.mode != "none":
        yield f"{spec.checkpointing.mode} recomputation"
    if spec.train.loss != "full":
        yield f"the {spec.train.loss} loss"
    yield f"precision {spec.precision.name}"
    yield f"optimizer {spec.optimizer.name}"
    if spec.adapter.name != "none":
        yield f"adapter {spec.adapter.name}"
    if spec.precision.qat is not None:
        yield "quantization-aware training"


def _sharding(spec: RunSpec) -> Iterator[str]:
    parallel, zero = spec.parallel, spec.zero
    if not parallel.shard:
        yield f"ZeRO-{zero.stage}"
    else:
        reshards = spec.backend.reshard_after_forward
        yield "resharding" if (zero.stage == 3 if reshards is None else reshards) else "no resharding"
    if parallel.replicate > 1:
        yield "replicas"
    if zero.hpz > 1:
        yield "a second partition inside a node"
    for kept, place in (("optimizer", zero.offload_optimizer), ("parameters", zero.offload_parameters)):
        if place != "none":
            yield f"{kept} offloaded to {place}"
