"""The neighbours of a run: single changes that take less memory, the cheapest first.

Each function gives the variants of one change, the weakest first, each as overrides and as the run that they make;
a test demands that pasting the overrides gives that very run. It starts from the run as it is and is offered only where
it changes anything. Where a group stands as one of its options has it, the change is spelt as another option of that
group (``checkpointing=full``, ``parallel=zero3``); where the user has refined it, single keys are set, so that nothing
else of the group is lost. A change keeps the batch of an optimizer step wherever it can, because another batch is
another training: where the number of data ranks changes, :func:`launcher.spec.change.same_batch` sets
``train.global_batch_size`` too. The cost is said in words, with the traffic that a layout adds.
"""

from collections.abc import Iterator
from dataclasses import replace

from launcher import backends
from launcher.estimate import families
from launcher.spec import PrecisionSpec, RunSpec, edit
from launcher.spec.change import Change, Neighbour, batches, same_batch, set_to

_NODE = 8  # GPUs of the usual node.

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


def fewer_checkpoints(spec: RunSpec) -> Iterator[Change]:
    """One checkpoint on disk in place of several."""
    if spec.save_every is not None and spec.save.keep > 1:
        yield set_to(spec, "older checkpoints", {"save.keep": 1}, stays=True)


def shards_as_they_are(spec: RunSpec) -> Iterator[Change]:
    """Checkpoints of the optimizer's shards, which no rank gathers."""
    if spec.save.reshardable:
        cost = "a checkpoint that other tensor or pipeline degrees can read"
        yield set_to(spec, cost, {"save.reshardable": None}, stays=True)


def saves_in_the_foreground(spec: RunSpec) -> Iterator[Change]:
    """Checkpoints that no copy of the states waits on the host for."""
    if spec.save.asynchronous:
        yield set_to(spec, "time: the training waits while a checkpoint is written", {"save.async": False}, stays=True)


def no_export(spec: RunSpec) -> Iterator[Change]:
    """No weights gathered on the host for transformers."""
    if spec.save.export != "none":
        yield set_to(spec, "the export: the weights are in the checkpoints alone", {"save.export": "none"}, stays=True)


def _without_saves(spec: RunSpec) -> dict[str, object]:
    """The settings with which nothing is saved on the way; none where nothing is."""
    keys = {"save.every": spec.save.every, "save.per_epoch": spec.save.per_epoch}
    return {key: None for key, value in keys.items() if value is not None}


def last_checkpoint_only(spec: RunSpec) -> Iterator[Change]:
    """One checkpoint, after the last step."""
    if spec.save_every is not None and spec.save.last:
        yield set_to(spec, "checkpoints on the way: a crash loses all steps", _without_saves(spec), stays=True)


def no_checkpoint(spec: RunSpec) -> Iterator[Change]:
    """No checkpoint at all, for a run that is only measured or tried."""
    settings = _without_saves(spec)
    if spec.save.last:
        settings["save.last"] = False
    if settings and spec.save.export == "none":
        yield set_to(spec, "the trained model: nothing is saved, so this is for trials", settings, stays=True)


def fewer_readers(spec: RunSpec) -> Iterator[Change]:
    """The ranks read their data themselves, without processes that do it ahead."""
    if spec.data.workers:
        yield set_to(spec, "each step waits until its data are read", {"data.workers": 0}, stays=True)


def expandable_segments(spec: RunSpec) -> Iterator[Change]:
    """The CUDA allocator grows segments in place of leaving gaps."""
    if spec.hardware.device == "cuda" and spec.train.allocator == "default":
        cost = "next to nothing: the allocator maps memory in place of caching segments"
        yield set_to(spec, cost, {"train.allocator": "expandable"})


def bucket_views(spec: RunSpec) -> Iterator[Change]:
    """DDP's gradients inside its communication buckets."""
    if not spec.backend.bucket_view:
        yield set_to(spec, "nothing", {"backend.bucket_view": True})


def fused_optimizer(spec: RunSpec) -> Iterator[Change]:
    """One kernel without temporaries."""
    switched_off = spec.optimizer.fused is False or spec.optimizer.foreach is True
    if spec.optimizer.name == "adamw" and switched_off and spec.hardware.device == "cuda":
        settings: dict[str, object] = {"optimizer.fused": True}
        if spec.optimizer.foreach:
            settings["optimizer.foreach"] = None
        yield set_to(spec, "nothing", settings)


def smaller_buffers(spec: RunSpec) -> Iterator[Change]:
    """Smaller buffers of the engine's own."""
    yield from backends.of(spec).changes(spec, "buffers")


def chunked_loss(spec: RunSpec) -> Iterator[Change]:
    """The logits of a few tokens at a time."""
    if spec.train.loss == "full":
        cost = "a little time: the loss runs over pieces of the sequence"
        yield set_to(spec, cost, {"train.loss": "chunked"}, stays=True)


def selective_checkpointing(spec: RunSpec) -> Iterator[Change]:
    """Some activations computed again."""
    if spec.checkpointing.mode == "none" and spec.checkpointing.layers is None:
        cost = "a second run of a part of the forward pass"
        yield set_to(spec, cost, {"checkpointing.mode": "selective"}, ("checkpointing=selective",))


def module_checkpointing(spec: RunSpec) -> Iterator[Change]:
    """Some modules of each block computed again."""
    if spec.checkpointing.mode == "none" and spec.checkpointing.layers is None:
        yield from backends.of(spec).changes(spec, "recomputation")


def offloaded_activations(spec: RunSpec) -> Iterator[Change]:
    """The inputs of recomputed blocks in host memory, where that is another one."""
    how = spec.checkpointing
    if how.mode == "full" and not how.offload and spec.hardware.device != "cpu":
        cost = "inputs of blocks in host memory: both passes wait for PCIe"
        yield set_to(spec, cost, {"checkpointing.offload": True})


def full_checkpointing(spec: RunSpec) -> Iterator[Change]:
    """Only the input of each block is kept."""
    if spec.checkpointing.mode == "full":
        return
    cost = "a second forward pass, about a third more computation"
    if spec.checkpointing.modules:
        yield set_to(spec, cost, {"checkpointing.mode": "full", "checkpointing.modules": ()})
    else:
        yield set_to(spec, cost, {"checkpointing.mode": "full"}, ("checkpointing=full",))


def smaller_micro_batch(spec: RunSpec) -> Iterator[Change]:
    """Fewer sequences at once and more gradient accumulation; the optimizer step stays as it is."""
    size = spec.micro_batch_size
    for smaller in reversed(edit.divisors(size)[:-1]):
        count = spec.gradient_accumulation * size // smaller
        cost = f"{count} micro-batches of {smaller} a step: smaller matrix products"
        yield set_to(spec, cost, batches(spec, count, smaller))


def bf16(spec: RunSpec) -> Iterator[Change]:
    """Half the bytes of activations."""
    precision = spec.precision
    if precision.compute != "fp32" or "bf16" not in spec.hardware.dtypes:
        return
    cost = "precision: matrix products with 8 bits of mantissa, which are faster and change the numbers of the training"
    if precision == _FP32:
        settings: dict[str, object] = {"precision.name": "bf16", "precision.compute": "bf16"}
        yield set_to(spec, cost, settings, ("precision=bf16",), stays=True)
    else:
        yield set_to(spec, cost, {"precision.compute": "bf16"}, stays=True)


def eight_bit_optimizer(spec: RunSpec) -> Iterator[Change]:
    """Adam's moments in 8 bits."""
    if spec.optimizer.name == "adamw" and spec.hardware.device == "cuda":
        cost = "moments of 8 bits, which change the numbers of the training, and the package torchao or bitsandbytes"
        settings: dict[str, object] = {"optimizer.name": "adamw_8bit"}
        for key in ("fused", "foreach"):
            if getattr(spec.optimizer, key) is not None:
                settings[f"optimizer.{key}"] = None
        yield set_to(spec, cost, settings, stays=True)


def low_rank_adapter(spec: RunSpec) -> Iterator[Change]:
    """Small trained matrices beside frozen weights, which qlora quantises to 4 bits; of a run that starts from weights.

    One that starts from random values has nothing worth freezing.
    """
    if spec.model.weights is None:
        return
    for name, weights in (("lora", "weights"), ("qlora", "weights of 4 bits")):
        if spec.adapter.name == "none" or (name == "qlora" and spec.adapter.name == "lora"):
            cost = f"another training: of an adapter alone, beside frozen {weights}"
            change = set_to(spec, cost, {"adapter.name": name}, (f"adapter={name}",), stays=True)
            yield replace(change, spec=families.with_targets(change.spec))


def shorter_sequences(spec: RunSpec) -> Iterator[Change]:
    """A half, a quarter, ... of the tokens of a sequence, not below 512."""
    length = spec.sequence_length
    while (length := length // 2) >= 512:
        cost = f"sequences of {length} tokens, not {spec.sequence_length}: another training"
        yield set_to(spec, cost, {"train.sequence_length": length}, stays=True)


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
        yield set_to(spec, "gathers over all nodes in place of inside each replica", {"parallel.replicate": 1})


def tensor_parallel(spec: RunSpec) -> Iterator[Change]:
    """Each layer split over more GPUs of a node."""
    yield from backends.of(spec).changes(spec, "tensor")


def sequence_ranks(spec: RunSpec) -> Iterator[Change]:
    """Each sequence split over more ranks."""
    yield from backends.of(spec).changes(spec, "sequence")


def pipeline_parallel(spec: RunSpec) -> Iterator[Change]:
    """Layers shared out over more stages; where they do not divide, with fewer on the first and the last."""
    parallel = spec.parallel
    if parallel.first_stage_layers is not None or parallel.last_stage_layers is not None or parallel.layout:
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


NEIGHBOURS: tuple[Neighbour, ...] = (
    fewer_checkpoints,
    shards_as_they_are,
    saves_in_the_foreground,
    fewer_readers,
    expandable_segments,
    bucket_views,
    fused_optimizer,
    sequence_parallel,
    smaller_buffers,
    chunked_loss,
    selective_checkpointing,
    module_checkpointing,
    smaller_micro_batch,
    sharding,
    no_replicas,
    bf16,
    full_checkpointing,
    offloaded_activations,
    sequence_ranks,
    tensor_parallel,
    pipeline_parallel,
    eight_bit_optimizer,
    offloaded_optimizer,
    fewer_ranks,
    offloaded_parameters,
    no_export,
    last_checkpoint_only,
    no_checkpoint,
    low_rank_adapter,
    shorter_sequences,
    whole_node,
    more_nodes,
)

ON_DISK: tuple[Neighbour, ...] = (fewer_checkpoints, last_checkpoint_only, no_checkpoint)
"""Changes of what is kept on the disk, which are all that is tried where it alone is too small."""

GIVES_UP: dict[Neighbour, int] = {
    no_export: 1,
    last_checkpoint_only: 1,
    no_checkpoint: 2,
    low_rank_adapter: 3,
    shorter_sequences: 3,
}
"""Changes that give up more than speed and numbers, and so stand behind all others, however fast they are."""

ELSEWHERE = frozenset({*ON_DISK, fewer_readers, saves_in_the_foreground, no_export})
"""Changes of what is on a node's host and on the disk, which leave the device as it is."""

OF_PASSES = ELSEWHERE | {
    shards_as_they_are,
    chunked_loss,
    selective_checkpointing,
    module_checkpointing,
    smaller_micro_batch,
    full_checkpointing,
    offloaded_activations,
    shorter_sequences,
}
"""Those, and changes of what the passes of a step or a save hold, which leave what is there between two steps."""

ANOTHER_TRAINING = frozenset({low_rank_adapter, shorter_sequences})
"""Changes that make it another training: alone they are not answer enough where two others together suffice."""

TRAINS_OTHERS = frozenset({low_rank_adapter})
"""Changes after which other parameters are trained: no way on for a run that has begun to train its own."""
