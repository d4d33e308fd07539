"""Neighbours that lay the run out over ranks, nodes and host memory in another way.

A change of the degrees changes how many data ranks there are, and with them the batch of a step where it follows from
the micro-batch: :func:`launcher.spec.change.same_batch` then sets ``train.global_batch_size`` too, so that the
training stays the same.
Where a run is a preset as it stands, the change is spelt as the next preset (``parallel=zero3``), which is what a user
would type. The cost is said in words, with the traffic that the layout adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from launcher import backends
from launcher.spec import RunSpec
from launcher.spec.change import Change, same_batch, set_to

_NODE = 8
"""GPUs of the usual node."""


def sequence_parallel(spec: RunSpec) -> Iterator[Change]:
    """Norms and residuals split over the tensor parallel ranks."""
    if spec.parallel.tensor > 1 and not spec.parallel.sequence:
        cost = "nothing: all-gather and reduce-scatter in place of each all-reduce"
        yield set_to(spec, cost, {"parallel.sequence": True})


def sharding(spec: RunSpec) -> Iterator[Change]:
    """Model states sharded over the data ranks: the next stages of ZeRO, or FSDP in place of DDP."""
    if spec.shard_degree > 1:
        yield from backends.of(spec).changes(spec, "sharding")


def no_replicas(spec: RunSpec) -> Iterator[Change]:
    """Shards over all data ranks in place of within each replica."""
    if spec.parallel.replicate > 1:
        cost = "gathers over all nodes in place of inside each replica"
        yield set_to(spec, cost, {"parallel.replicate": 1})


def tensor_parallel(spec: RunSpec) -> Iterator[Change]:
    """Each layer split over more GPUs of a node."""
    yield from backends.of(spec).changes(spec, "tensor")


def sequence_ranks(spec: RunSpec) -> Iterator[Change]:
    """Each sequence split over more ranks."""
    yield from backends.of(spec).changes(spec, "sequence")


def pipeline_parallel(spec: RunSpec) -> Iterator[Change]:
    """Layers shared out over more stages; where they do not divide, with fewer on the first and the last."""
    if spec.parallel.first_stage_layers is not None or spec.parallel.last_stage_layers is not None:
        return
    degree, cost = spec.parallel.pipeline, "stages that wait for each other, the less the more micro-batches there are"
    while (degree := degree * 2) <= min(spec.model.num_hidden_layers, spec.gpus):
        settings = {"parallel.pipeline": degree, **_smaller_ends(spec.model.num_hidden_layers, degree)}
        yield same_batch(spec, set_to(spec, "", settings), cost)


def _smaller_ends(layers: int, stages: int) -> dict[str, object]:
    """Sizes of the first and the last stage, where the embedding and the head are, that leave whole ones between.

    Llama 3 405B has its 126 layers so on 16 stages: 7, 14 times 8, and 7 (arXiv:2407.21783, section 3.3.2).
    """
    ends = layers - (stages - 2) * -(-layers // stages)
    if layers % stages == 0 or ends < 2:
        return {}
    return {"parallel.first_stage_layers": ends // 2, "parallel.last_stage_layers": ends - ends // 2}


def offloaded_optimizer(spec: RunSpec) -> Iterator[Change]:
    """Optimizer states in host memory, where that is another one."""
    if spec.zero.stage > 0 and spec.zero.offload_optimizer == "none" and spec.hardware.device != "cpu":
        cost = "optimizer states in host memory: each step waits for the CPU and for PCIe"
        yield set_to(spec, cost, {"zero.offload_optimizer": "cpu"})


def offloaded_parameters(spec: RunSpec) -> Iterator[Change]:
    """Parameters in host memory too, where that is another one."""
    if spec.zero.stage == 3 and spec.zero.offload_parameters == "none" and spec.hardware.device != "cpu":
        cost = "parameters fetched over PCIe in both passes"
        settings: dict[str, object] = {"zero.offload_parameters": "cpu"}
        if spec.zero.offload_optimizer == "none":
            settings["zero.offload_optimizer"] = "cpu"
        yield set_to(spec, cost, settings)


def whole_node(spec: RunSpec) -> Iterator[Change]:
    """Twice, four times, ... the GPUs of a node, up to those of a usual one."""
    count = spec.cluster.gpus_per_node
    while spec.hardware.device == "cuda" and count < _NODE:
        count = min(2 * count, _NODE)
        yield _more(spec, {"cluster.gpus_per_node": count})


def fewer_ranks(spec: RunSpec) -> Iterator[Change]:
    """Half of the CPU ranks, which all have the same host."""
    if spec.hardware.device == "cpu" and spec.cluster.gpus_per_node > 1:
        yield _more(spec, {"cluster.gpus_per_node": spec.cluster.gpus_per_node // 2})


def more_nodes(spec: RunSpec) -> Iterator[Change]:
    """Twice to 64 times the nodes."""
    for factor in (2, 4, 8, 16, 32, 64):
        yield _more(spec, {"cluster.nodes": spec.cluster.nodes * factor})


def _more(spec: RunSpec, settings: dict[str, object]) -> Change:
    change = set_to(spec, "", settings, stays=True)
    before, after = spec.global_batch_size, change.spec.global_batch_size
    batch = f"; a step sees {after} sequences, not {before}: another training" if after != before else ""
    noun = "GPUs" if spec.hardware.device == "cuda" else "CPU ranks"
    return replace(change, cost=f"{change.spec.gpus} {noun} in place of {spec.gpus}{batch}")
