"""The neighbours of a run: single changes that take less memory, in the order of what they cost, as data.

Each function gives the variants of one change, the weakest first, each as overrides and as the run that they make;
a test demands that pasting the overrides gives that very run. A change keeps the batch of an optimizer step wherever
it can, because another batch is another training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from launcher import ways
from launcher.spec import ParallelSpec, PrecisionSpec, RunSpec


@dataclass(frozen=True, slots=True)
class Change:
    """One variant: the overrides, the run that they make, and the cost in words."""

    overrides: tuple[str, ...]
    spec: RunSpec
    cost: str


type Neighbour = Callable[[RunSpec], Iterator[Change]]

_NODE = 8
"""GPUs of the usual node."""

_FP32 = PrecisionSpec(
    name="fp32",
    compute="fp32",
    parameters=None,
    gradients=None,
    accumulate=None,
    master=None,
    optimizer_states=None,
    reduce=None,
    recipe=None,
)
"""``precision=fp32`` with nothing refined."""


def _set(spec: RunSpec, cost: str, settings: dict[str, object], shown: tuple[str, ...] | None = None) -> Change:
    """Keys set to values; ``shown`` are other words for the same."""
    overrides = shown or tuple(ways.override(path, value) for path, value in settings.items())
    for path, value in settings.items():
        spec = ways.changed(spec, path, value)
    return Change(overrides, spec, cost)


def expandable_segments(spec: RunSpec) -> Iterator[Change]:
    """The CUDA allocator grows segments in place of leaving gaps."""
    if spec.hardware.device == "cuda" and spec.train.allocator == "default":
        cost = "next to nothing: the allocator maps memory in place of caching segments"
        yield _set(spec, cost, {"train.allocator": "expandable"})


def bucket_views(spec: RunSpec) -> Iterator[Change]:
    """DDP's gradients inside its communication buckets."""
    if not spec.backend.bucket_view:
        yield _set(spec, "nothing", {"backend.bucket_view": True})


def fused_optimizer(spec: RunSpec) -> Iterator[Change]:
    """One kernel without temporaries."""
    switched_off = spec.optimizer.fused is False or spec.optimizer.foreach is True
    if spec.optimizer.name == "adamw" and switched_off and spec.hardware.device == "cuda":
        settings: dict[str, object] = {"optimizer.fused": True}
        if spec.optimizer.foreach:
            settings["optimizer.foreach"] = None
        yield _set(spec, "nothing", settings)


def smaller_buckets(spec: RunSpec) -> Iterator[Change]:
    """DeepSpeed's reduction buckets, a tenth of its default."""
    smaller = 50_000_000
    if spec.backend.name == "deepspeed" and spec.zero.reduce_bucket_size > smaller:
        settings: dict[str, object] = {"zero.reduce_bucket_size": smaller}
        if spec.zero.stage == 3:
            settings["zero.max_reuse_distance"] = smaller
            settings["zero.max_live_parameters"] = smaller
        yield _set(spec, "more and smaller collectives", settings)


def chunked_loss(spec: RunSpec) -> Iterator[Change]:
    """The logits of a few tokens at a time."""
    if spec.train.loss == "full":
        yield _set(spec, "a little time: the loss runs over pieces of the sequence", {"train.loss": "chunked"})


def sequence_parallel(spec: RunSpec) -> Iterator[Change]:
    """Norms and residuals split over the tensor parallel ranks."""
    if spec.parallel.tensor > 1 and not spec.parallel.sequence:
        cost = "nothing: all-gather and reduce-scatter in place of each all-reduce"
        yield _set(spec, cost, {"parallel.sequence": True})


def _is_preset(spec: RunSpec, name: str, *, shard: bool, stage: int) -> bool:
    """Whether the parallel group is as the preset ``parallel=<name>`` leaves it: no degree refined."""
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
    if spec.world.shard == 1:
        return
    if spec.backend.name == "fsdp":
        yield from _fsdp(spec)
        return
    stage = spec.zero.stage
    for larger in range(stage + 1, 4):
        cost = f"{_SHARDED[larger]} communicated in every step"
        if _is_preset(spec, f"zero{stage}", shard=False, stage=stage) and spec.backend.name == "deepspeed":
            settings: dict[str, object] = {"parallel.name": f"zero{larger}", "zero.stage": larger}
            yield _set(spec, cost, settings, (f"parallel=zero{larger}",))
        else:
            yield _set(spec, cost, {"zero.stage": larger})


_SHARDED = {
    1: "updated parameters are",
    2: "updated parameters and reduced gradients are",
    3: "half as much again is",  # ZeRO-3 sends 3 P in place of 2 P elements a step (arXiv:1910.02054, section 7.2.2).
}


def _fsdp(spec: RunSpec) -> Iterator[Change]:
    if spec.parallel.shard:
        if spec.zero.stage < 3 and spec.backend.reshard_after_forward is None:
            yield _set(spec, "parameters are gathered a second time, for backward", {"zero.stage": 3})
        return
    cost = f"{_SHARDED[3]} communicated in every step"
    settings: dict[str, object] = {"parallel.shard": True, "zero.stage": 3}
    if _is_preset(spec, "ddp", shard=False, stage=0):
        yield _set(spec, cost, {"parallel.name": "fsdp", **settings}, ("parallel=fsdp",))
    else:
        yield _set(spec, cost, settings)


def no_replicas(spec: RunSpec) -> Iterator[Change]:
    """Shards over all data ranks in place of within each replica."""
    if spec.parallel.replicate > 1:
        cost = "parameters are gathered over all nodes, not inside one"
        yield _set(spec, cost, {"parallel.replicate": 1})


def selective_checkpointing(spec: RunSpec) -> Iterator[Change]:
    """Some activations computed again."""
    if spec.checkpointing.mode == "none" and spec.checkpointing.layers is None:
        cost = "a part of the forward pass runs twice"
        yield _set(spec, cost, {"checkpointing.mode": "selective"}, ("checkpointing=selective",))


def smaller_micro_batch(spec: RunSpec) -> Iterator[Change]:
    """Fewer sequences at once and more gradient accumulation; the optimizer step stays as it is."""
    size, total = spec.train.micro_batch_size, spec.global_batch_size
    settings: dict[str, object] = {}
    if spec.train.global_batch_size is None:
        settings["train.global_batch_size"] = total
    for smaller in reversed(ways.divisors(size)[:-1]):
        count = spec.gradient_accumulation * size // smaller
        cost = f"{count} micro-batches of {smaller} a step: smaller matrix products"
        yield _set(spec, cost, {"train.micro_batch_size": smaller, **settings})


def bf16(spec: RunSpec) -> Iterator[Change]:
    """Half the bytes of activations."""
    precision = spec.precision
    if precision.compute != "fp32" or "bf16" not in spec.hardware.dtypes:
        return
    cost = "8 bits of mantissa in matrix products, and they are faster"
    if precision == _FP32:
        settings: dict[str, object] = {"precision.name": "bf16", "precision.compute": "bf16"}
        yield _set(spec, cost, settings, ("precision=bf16",))
    else:
        yield _set(spec, cost, {"precision.compute": "bf16"})


def full_checkpointing(spec: RunSpec) -> Iterator[Change]:
    """Only the input of each block is kept."""
    if spec.checkpointing.mode == "full":
        return
    cost = "the forward pass runs twice, about a third more computation"
    if spec.checkpointing.modules:
        yield _set(spec, cost, {"checkpointing.mode": "full", "checkpointing.modules": ()})
    else:
        yield _set(spec, cost, {"checkpointing.mode": "full"}, ("checkpointing=full",))


def tensor_parallel(spec: RunSpec) -> Iterator[Change]:
    """Each layer split over more GPUs of a node."""
    degree = spec.parallel.tensor
    settings: dict[str, object] = {"parallel.sequence": True} if spec.backend.name == "megatron" else {}
    while (degree := degree * 2) <= min(_NODE, spec.cluster.gpus_per_node):
        change = _set(spec, "two all-reduces a layer", {"parallel.tensor": degree, **settings})
        yield _same_batch(spec, change, "two all-reduces a layer, each way")


def pipeline_parallel(spec: RunSpec) -> Iterator[Change]:
    """Layers shared out over more stages."""
    if spec.parallel.first_stage_layers is not None or spec.parallel.last_stage_layers is not None:
        return
    degree = spec.parallel.pipeline
    while (degree := degree * 2) <= min(spec.model.num_hidden_layers, spec.gpus):
        yield _same_batch(spec, _set(spec, "", {"parallel.pipeline": degree}), "stages that wait for each other")


def _same_batch(spec: RunSpec, change: Change, cost: str) -> Change:
    """A change of the data degree with the optimizer step that the run had."""
    total = spec.global_batch_size
    if change.spec.global_batch_size == total:
        return replace(change, cost=cost)
    batch = _set(change.spec, cost, {"train.global_batch_size": total})
    return replace(batch, overrides=(*change.overrides, *batch.overrides))


def eight_bit_optimizer(spec: RunSpec) -> Iterator[Change]:
    """Adam's moments in 8 bits."""
    if spec.optimizer.name == "adamw" and spec.hardware.device == "cuda":
        cost = "moments quantised in blocks; needs bitsandbytes"
        settings: dict[str, object] = {"optimizer.name": "adamw_8bit"}
        for key in ("fused", "foreach"):
            if getattr(spec.optimizer, key) is not None:
                settings[f"optimizer.{key}"] = None
        yield _set(spec, cost, settings)


def offloaded_optimizer(spec: RunSpec) -> Iterator[Change]:
    """Optimizer states in host memory."""
    if spec.zero.stage > 0 and spec.zero.offload_optimizer == "none":
        cost = "optimizer states in host memory: each step waits for the CPU and for PCIe"
        yield _set(spec, cost, {"zero.offload_optimizer": "cpu"})


def offloaded_parameters(spec: RunSpec) -> Iterator[Change]:
    """Parameters in host memory too."""
    if spec.zero.stage == 3 and spec.zero.offload_parameters == "none":
        cost = "parameters come over PCIe in every pass"
        settings: dict[str, object] = {"zero.offload_parameters": "cpu"}
        if spec.zero.offload_optimizer == "none":
            settings["zero.offload_optimizer"] = "cpu"
        yield _set(spec, cost, settings)


def whole_node(spec: RunSpec) -> Iterator[Change]:
    """All GPUs of a usual node."""
    if spec.hardware.device == "cuda" and spec.cluster.gpus_per_node < _NODE:
        yield _more(spec, {"cluster.gpus_per_node": _NODE})


def more_nodes(spec: RunSpec) -> Iterator[Change]:
    """Twice to 64 times the nodes."""
    for factor in (2, 4, 8, 16, 32, 64):
        yield _more(spec, {"cluster.nodes": spec.cluster.nodes * factor})


def _more(spec: RunSpec, settings: dict[str, object]) -> Change:
    change = _set(spec, "", settings)
    before, after = spec.global_batch_size, change.spec.global_batch_size
    batch = f"; a step sees {after} sequences, not {before}" if after != before else ""
    noun = "GPUs" if spec.hardware.device == "cuda" else "CPU ranks"
    return replace(change, cost=f"{change.spec.gpus} {noun} in place of {spec.gpus}{batch}")


def low_rank_adapter(spec: RunSpec) -> Iterator[Change]:
    """Small trained matrices beside frozen weights, which qlora quantises to 4 bits."""
    if spec.adapter.name == "none":
        cost = "only the adapter is trained: fine-tuning of existing weights"
        yield _set(spec, cost, {"adapter.name": "lora"}, ("adapter=lora",))
    if spec.adapter.name != "qlora":
        cost = "only the adapter is trained, beside weights of 4 bits"
        yield _set(spec, cost, {"adapter.name": "qlora"}, ("adapter=qlora",))


def shorter_sequences(spec: RunSpec) -> Iterator[Change]:
    """A half, a quarter, ... of the tokens of a sequence, not below 512."""
    length = spec.sequence_length
    while (length := length // 2) >= 512:
        cost = f"sequences of {length} tokens, not {spec.sequence_length}: another training"
        yield _set(spec, cost, {"train.sequence_length": length})


NEIGHBOURS: tuple[Neighbour, ...] = (
    expandable_segments,
    bucket_views,
    fused_optimizer,
    sequence_parallel,
    smaller_buckets,
    chunked_loss,
    selective_checkpointing,
    smaller_micro_batch,
    sharding,
    no_replicas,
    bf16,
    full_checkpointing,
    tensor_parallel,
    pipeline_parallel,
    eight_bit_optimizer,
    offloaded_optimizer,
    whole_node,
    more_nodes,
    offloaded_parameters,
    low_rank_adapter,
    shorter_sequences,
)
