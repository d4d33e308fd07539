"""Neighbours that lay the run out over ranks, nodes and host memory in another way.

A change of the degrees changes how many data ranks there are, and with them the batch of a step where it follows from
the micro-batch: :func:`_same_batch` then sets ``train.global_batch_size`` too, so that the training stays the same.
Where a run is a preset as it stands, the change is spelt as the next preset (``parallel=zero3``), which is what a user
would type. The cost is said in words, with the traffic that the layout adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from launcher.preflight.changes.change import Change, set_to
from launcher.spec import ParallelSpec, RunSpec

_NODE = 8
"""GPUs of the usual node."""

_FEWEST_TOKENS = 4096
"""Tokens of a sequence that a rank keeps at least: with fewer, messages take longer than the attention they hide in."""

_SHARDED = {
    1: "no more traffic than data parallelism has",
    2: "no more traffic than data parallelism has",
    3: "half as much traffic again as data parallelism has",
}
"""ZeRO sends 2 P elements a step at the stages 1 and 2, and 3 P at 3 (arXiv:1910.02054, section 7)."""


def sequence_parallel(spec: RunSpec) -> Iterator[Change]:
    """Norms and residuals split over the tensor parallel ranks."""
    if spec.parallel.tensor > 1 and not spec.parallel.sequence:
        cost = "nothing: all-gather and reduce-scatter in place of each all-reduce"
        yield set_to(spec, cost, {"parallel.sequence": True})


def _is_preset(spec: RunSpec, name: str, *, shard: bool, stage: int) -> bool:
    """True if the parallel group is as the preset ``parallel=<name>`` leaves it: no degree refined."""
    preset = ParallelSpec(
        name=name,
        tensor=1,
        pipeline=1,
        virtual_pipeline=1,
        first_stage_layers=None,
        last_stage_layers=None,
        context=1,
        expert=1,
        expert_tensor=None,
        sequence=False,
        ulysses=1,
        replicate=1,
        schedule="1f1b",
        shard=shard,
    )
    return spec.parallel == preset and spec.zero.stage == stage


def sharding(spec: RunSpec) -> Iterator[Change]:
    """Model states sharded over the data ranks: the next stages of ZeRO, or FSDP in place of DDP."""
    if spec.shard_degree == 1:
        return
    if spec.backend.name == "fsdp":
        yield from _fsdp(spec)
        return
    stage = spec.zero.stage
    for larger in range(stage + 1, 4):
        cost = _SHARDED[larger]
        if _is_preset(spec, f"zero{stage}", shard=False, stage=stage) and spec.backend.name == "deepspeed":
            settings: dict[str, object] = {"parallel.name": f"zero{larger}", "zero.stage": larger}
            yield set_to(spec, cost, settings, (f"parallel=zero{larger}",))
        else:
            yield set_to(spec, cost, {"zero.stage": larger})


def _fsdp(spec: RunSpec) -> Iterator[Change]:
    if spec.parallel.shard:
        if spec.zero.stage < 3 and spec.backend.reshard_after_forward is None:
            yield set_to(spec, "a second gather of the parameters, for backward", {"zero.stage": 3})
        return
    cost = _SHARDED[3]
    settings: dict[str, object] = {"parallel.shard": True, "zero.stage": 3}
    if _is_preset(spec, "ddp", shard=False, stage=0):
        yield set_to(spec, cost, {"parallel.name": "fsdp", **settings}, ("parallel=fsdp",))
    else:
        yield set_to(spec, cost, settings)


def no_replicas(spec: RunSpec) -> Iterator[Change]:
    """Shards over all data ranks in place of within each replica."""
    if spec.parallel.replicate > 1:
        cost = "gathers over all nodes in place of inside each replica"
        yield set_to(spec, cost, {"parallel.replicate": 1})


def tensor_parallel(spec: RunSpec) -> Iterator[Change]:
    """Each layer split over more GPUs of a node."""
    degree = spec.parallel.tensor
    settings: dict[str, object] = {"parallel.sequence": True} if spec.backend.name == "megatron" else {}
    while (degree := degree * 2) <= min(_NODE, spec.cluster.gpus_per_node):
        change = set_to(spec, "two all-reduces a layer", {"parallel.tensor": degree, **settings})
        yield _same_batch(spec, change, "two all-reduces a layer, each way")


def sequence_ranks(spec: RunSpec) -> Iterator[Change]:
    """Each sequence split over more ranks, as long as every one keeps a good many of its tokens."""
    axis = "ulysses" if spec.backend.name == "deepspeed" else "context"
    cost = {
        "context": "keys and values sent round the ranks in each layer",
        "ulysses": "four all-to-alls a layer, each way",
    }[axis]
    degree = getattr(spec.parallel, axis)
    while (degree := degree * 2) <= min(spec.gpus, spec.sequence_length // _FEWEST_TOKENS):
        yield _same_batch(spec, set_to(spec, "", {f"parallel.{axis}": degree}), cost)


def pipeline_parallel(spec: RunSpec) -> Iterator[Change]:
    """Layers shared out over more stages; where they do not divide, with fewer on the first and the last."""
    if spec.parallel.first_stage_layers is not None or spec.parallel.last_stage_layers is not None:
        return
    degree, cost = spec.parallel.pipeline, "stages that wait for each other, the less the more micro-batches there are"
    while (degree := degree * 2) <= min(spec.model.num_hidden_layers, spec.gpus):
        settings = {"parallel.pipeline": degree, **_smaller_ends(spec.model.num_hidden_layers, degree)}
        yield _same_batch(spec, set_to(spec, "", settings), cost)


def _smaller_ends(layers: int, stages: int) -> dict[str, object]:
    """Sizes of the first and the last stage, where the embedding and the head are, that leave whole ones between.

    Llama 3 405B has its 126 layers so on 16 stages: 7, 14 times 8, and 7 (arXiv:2407.21783, section 3.3.2).
    """
    ends = layers - (stages - 2) * -(-layers // stages)
    if layers % stages == 0 or ends < 2:
        return {}
    return {"parallel.first_stage_layers": ends // 2, "parallel.last_stage_layers": ends - ends // 2}


def _same_batch(spec: RunSpec, change: Change, cost: str) -> Change:
    """A change of the data degree with the optimizer step that the run had."""
    total = spec.global_batch_size
    if change.spec.global_batch_size == total:
        return replace(change, cost=cost)
    batch = set_to(change.spec, cost, {"train.global_batch_size": total})
    return replace(batch, overrides=(*change.overrides, *batch.overrides))


def offloaded_optimizer(spec: RunSpec) -> Iterator[Change]:
    """Optimizer states in host memory."""
    if spec.zero.stage > 0 and spec.zero.offload_optimizer == "none":
        cost = "optimizer states in host memory: each step waits for the CPU and for PCIe"
        yield set_to(spec, cost, {"zero.offload_optimizer": "cpu"})


def offloaded_parameters(spec: RunSpec) -> Iterator[Change]:
    """Parameters in host memory too."""
    if spec.zero.stage == 3 and spec.zero.offload_parameters == "none":
        cost = "parameters fetched over PCIe in both passes"
        settings: dict[str, object] = {"zero.offload_parameters": "cpu"}
        if spec.zero.offload_optimizer == "none":
            settings["zero.offload_optimizer"] = "cpu"
        yield set_to(spec, cost, settings)


def whole_node(spec: RunSpec) -> Iterator[Change]:
    """All GPUs of a usual node."""
    if spec.hardware.device == "cuda" and spec.cluster.gpus_per_node < _NODE:
        yield _more(spec, {"cluster.gpus_per_node": _NODE})


def more_nodes(spec: RunSpec) -> Iterator[Change]:
    """Twice to 64 times the nodes."""
    for factor in (2, 4, 8, 16, 32, 64):
        yield _more(spec, {"cluster.nodes": spec.cluster.nodes * factor})


def _more(spec: RunSpec, settings: dict[str, object]) -> Change:
    change = set_to(spec, "", settings)
    before, after = spec.global_batch_size, change.spec.global_batch_size
    batch = f"; a step sees {after} sequences, not {before}" if after != before else ""
    noun = "GPUs" if spec.hardware.device == "cuda" else "CPU ranks"
    return replace(change, cost=f"{change.spec.gpus} {noun} in place of {spec.gpus}{batch}")
