"""The neighbours of a run: single changes that reduce its memory, the cheapest first.

Each function yields the variants of one change, the weakest first, each as overrides and as the resulting run; a test
checks that pasting the overrides gives exactly that run. A change starts from the run as it is and is offered only if
it has an effect. If a group still equals one of its options, the change selects another option (``checkpointing=full``,
``parallel=zero3``); if the user has set single keys of the group, the change sets single keys too, so that nothing else
in the group is lost. A change keeps the global batch wherever it can, because another batch changes the training: when
the number of data ranks changes, :func:`launcher.spec.change.same_batch` also sets ``train.global_batch_size``. The
cost is given in words, including the communication that a layout adds.
"""

from collections.abc import Iterator
from dataclasses import replace

from launcher import backends
from launcher.estimate import families
from launcher.spec import PrecisionSpec, RunSpec, edit
from launcher.spec.change import Change, Neighbour, batches, same_batch, set_to

_NODE = 8  # GPUs in a typical node.

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
"""``precision=fp32`` with no key changed."""


def fewer_checkpoints(spec: RunSpec) -> Iterator[Change]:
    """One checkpoint on disk instead of several."""
    if spec.save_every is not None and spec.save.keep > 1:
        yield set_to(spec, "older checkpoints", {"save.keep": 1}, stays=True)


def shards_as_they_are(spec: RunSpec) -> Iterator[Change]:
    """Checkpoints of optimizer shards that no rank has to gather."""
    if spec.save.reshardable:
        cost = "checkpoints that other tensor or pipeline degrees can load"
        yield set_to(spec, cost, {"save.reshardable": None}, stays=True)


def saves_in_the_foreground(spec: RunSpec) -> Iterator[Change]:
    """Synchronous checkpoints, without a copy of the states in host memory."""
    if spec.save.asynchronous:
        yield set_to(spec, "a wait while each checkpoint is written", {"save.async": False}, stays=True)


def no_export(spec: RunSpec) -> Iterator[Change]:
    """No export, which gathers the weights on the host for transformers."""
    if spec.save.export != "none":
        yield set_to(spec, "the export: only the checkpoints hold the weights", {"save.export": "none"}, stays=True)


def _without_saves(spec: RunSpec) -> dict[str, object]:
    """Settings that turn off intermediate checkpoints; empty if there are none to turn off."""
    keys = {"save.every": spec.save.every, "save.per_epoch": spec.save.per_epoch}
    return {key: None for key, value in keys.items() if value is not None}


def last_checkpoint_only(spec: RunSpec) -> Iterator[Change]:
    """One checkpoint, after the last step."""
    if spec.save_every is not None and spec.save.last:
        yield set_to(spec, "intermediate checkpoints: a crash loses all steps", _without_saves(spec), stays=True)


def no_checkpoint(spec: RunSpec) -> Iterator[Change]:
    """No checkpoint at all, for a run that is only measured or tried."""
    settings = _without_saves(spec)
    if spec.save.last:
        settings["save.last"] = False
    if settings and spec.save.export == "none":
        yield set_to(spec, "the trained model: nothing is saved, so use it for trials only", settings, stays=True)


def fewer_readers(spec: RunSpec) -> Iterator[Change]:
    """No data loader processes: each rank reads its own data."""
    if spec.data.workers:
        yield set_to(spec, "a wait for data in each step", {"data.workers": 0}, stays=True)


def expandable_segments(spec: RunSpec) -> Iterator[Change]:
    """The CUDA allocator grows its segments instead of leaving gaps between them."""
    if spec.hardware.device == "cuda" and spec.train.allocator == "default":
        cost = "almost nothing: the allocator maps memory instead of caching segments"
        yield set_to(spec, cost, {"train.allocator": "expandable"})


def bucket_views(spec: RunSpec) -> Iterator[Change]:
    """DDP's gradients as views into its communication buckets."""
    if not spec.backend.bucket_view:
        yield set_to(spec, "nothing", {"backend.bucket_view": True})


def fused_optimizer(spec: RunSpec) -> Iterator[Change]:
    """The fused optimizer: one kernel without temporary tensors."""
    switched_off = spec.optimizer.fused is False or spec.optimizer.foreach is True
    if spec.optimizer.name == "adamw" and switched_off and spec.hardware.device == "cuda":
        foreach = {"optimizer.foreach": None} if spec.optimizer.foreach else {}
        yield set_to(spec, "nothing", {"optimizer.fused": True, **foreach})


def smaller_buffers(spec: RunSpec) -> Iterator[Change]:
    """Smaller communication buffers of the engine."""
    yield from backends.of(spec).changes(spec, "buffers")


def frozen_in_bf16(spec: RunSpec) -> Iterator[Change]:
    """The weights that an adapter leaves frozen in bf16, where the engine holds them in fp32."""
    held = backends.of(spec).dtypes(spec).parameters
    if spec.adapter.name != "none" and spec.precision.compute == "bf16" and held == "fp32":
        cost = "precision: the adapter and its moments in bf16, like the frozen weights"
        yield set_to(spec, cost, {"precision.parameters": "bf16"}, stays=True)


def chunked_loss(spec: RunSpec) -> Iterator[Change]:
    """The loss computed over a few tokens at a time, so that the logits of all never exist at once."""
    if spec.train.loss == "full":
        cost = "a little time: the loss is computed in chunks of the sequence"
        yield set_to(spec, cost, {"train.loss": "chunked"}, stays=True)


def selective_checkpointing(spec: RunSpec) -> Iterator[Change]:
    """Selective checkpointing: some activations are recomputed."""
    if spec.checkpointing.mode == "none" and spec.checkpointing.layers is None:
        cost = "recomputation of part of the forward pass"
        yield set_to(spec, cost, {"checkpointing.mode": "selective"}, ("checkpointing=selective",))


def module_checkpointing(spec: RunSpec) -> Iterator[Change]:
    """Module checkpointing: some modules of each block are recomputed."""
    if spec.checkpointing.mode == "none" and spec.checkpointing.layers is None:
        yield from backends.of(spec).changes(spec, "recomputation")


def offloaded_activations(spec: RunSpec) -> Iterator[Change]:
    """The inputs of recomputed blocks kept in host memory, if the device has its own memory."""
    how = spec.checkpointing
    if how.mode == "full" and not how.offload and spec.hardware.device != "cpu":
        cost = "PCIe transfers in both passes: block inputs are kept in host memory"
        yield set_to(spec, cost, {"checkpointing.offload": True})


def full_checkpointing(spec: RunSpec) -> Iterator[Change]:
    """Full checkpointing: only the input of each block is kept."""
    if spec.checkpointing.mode == "full":
        return
    cost = "a second forward pass, about a third more computation"
    if spec.checkpointing.modules:
        yield set_to(spec, cost, {"checkpointing.mode": "full", "checkpointing.modules": ()})
    else:
        yield set_to(spec, cost, {"checkpointing.mode": "full"}, ("checkpointing=full",))


def smaller_micro_batch(spec: RunSpec) -> Iterator[Change]:
    """Fewer sequences at once and more gradient accumulation, with the same global batch."""
    size = spec.micro_batch_size
    for smaller in reversed(edit.divisors(size)[:-1]):
        count = spec.gradient_accumulation * size // smaller
        cost = f"smaller matrix products: {count} micro-batches of {smaller} per step"
        yield set_to(spec, cost, batches(spec, count, smaller))


def bf16(spec: RunSpec) -> Iterator[Change]:
    """Computation in bf16, which halves the bytes of activations."""
    precision = spec.precision
    if precision.compute != "fp32" or "bf16" not in spec.hardware.dtypes:
        return
    cost = "precision: matrix products with 8 bits of mantissa, which are faster but change the training numerically"
    if precision == _FP32:
        settings: dict[str, object] = {"precision.name": "bf16", "precision.compute": "bf16"}
        yield set_to(spec, cost, settings, ("precision=bf16",), stays=True)
    else:
        yield set_to(spec, cost, {"precision.compute": "bf16"}, stays=True)


def eight_bit_optimizer(spec: RunSpec) -> Iterator[Change]:
    """Adam's moments in 8 bits."""
    if spec.optimizer.name == "adamw" and spec.hardware.device == "cuda":
        cost = "precision: 8-bit moments, which change the training numerically and need torchao or bitsandbytes"
        unset = {f"optimizer.{key}": None for key in ("fused", "foreach") if getattr(spec.optimizer, key) is not None}
        yield set_to(spec, cost, {"optimizer.name": "adamw_8bit", **unset}, stays=True)


def low_rank_adapter(spec: RunSpec) -> Iterator[Change]:
    """An adapter trained on frozen weights, which qlora quantises to 4 bits.

    Only for a run that starts from pretrained weights: random values are not worth freezing.
    """
    if spec.model.weights is None:
        return
    for name, weights in (("lora", "weights"), ("qlora", "4-bit weights")):
        if spec.adapter.name == "none" or (name == "qlora" and spec.adapter.name == "lora"):
            cost = f"a change of the training: only an adapter is trained, on frozen {weights}"
            change = set_to(spec, cost, {"adapter.name": name}, (f"adapter={name}",), stays=True)
            yield replace(change, spec=families.with_targets(change.spec))


def shorter_sequences(spec: RunSpec) -> Iterator[Change]:
    """A half, a quarter, ... of the sequence length, down to 512 tokens."""
    length = spec.sequence_length
    while (length := length // 2) >= 512:
        cost = f"a change of the training: sequences of {length} tokens instead of {spec.sequence_length}"
        yield set_to(spec, cost, {"train.sequence_length": length}, stays=True)


def sequence_parallel(spec: RunSpec) -> Iterator[Change]:
    """Norms and residuals split over the tensor parallel ranks."""
    if spec.parallel.tensor > 1 and not spec.parallel.sequence:
        cost = "nothing: an all-gather and a reduce-scatter replace each all-reduce"
        yield set_to(spec, cost, {"parallel.sequence": True})


def sharding(spec: RunSpec) -> Iterator[Change]:
    """Model states sharded over the data ranks: the next stages of ZeRO, or FSDP instead of DDP."""
    if spec.shard_degree > 1:
        yield from backends.of(spec).changes(spec, "sharding")


def no_replicas(spec: RunSpec) -> Iterator[Change]:
    """Model states sharded over all data ranks instead of within each replica."""
    if spec.parallel.replicate > 1:
        yield set_to(spec, "all-gathers across all nodes instead of within each replica", {"parallel.replicate": 1})


def tensor_parallel(spec: RunSpec) -> Iterator[Change]:
    """Each layer split over more GPUs of a node."""
    yield from backends.of(spec).changes(spec, "tensor")


def sequence_ranks(spec: RunSpec) -> Iterator[Change]:
    """Each sequence split over more ranks."""
    yield from backends.of(spec).changes(spec, "sequence")


def pipeline_parallel(spec: RunSpec) -> Iterator[Change]:
    """Layers split over more pipeline stages; if they do not divide evenly, the first and last stage get fewer."""
    parallel = spec.parallel
    if parallel.first_stage_layers is not None or parallel.last_stage_layers is not None or parallel.layout:
        return
    degree, cost = spec.parallel.pipeline, "a pipeline bubble, which shrinks with the number of micro-batches"
    while (degree := degree * 2) <= min(spec.model.num_hidden_layers, spec.gpus):
        settings = {"parallel.pipeline": degree, **_smaller_ends(spec.model.num_hidden_layers, degree)}
        yield same_batch(spec, set_to(spec, "", settings), cost)


def _smaller_ends(layers: int, stages: int) -> dict[str, object]:
    """Fewer layers for the first and last stage, which hold embedding and head, so that the others are equal.

    Llama 3 405B splits its 126 layers over 16 stages this way: 7, 14 times 8, and 7 (arXiv:2407.21783, section 3.3.2).
    """
    ends = layers - (stages - 2) * -(-layers // stages)
    if layers % stages == 0 or ends < 2:
        return {}
    return {"parallel.first_stage_layers": ends // 2, "parallel.last_stage_layers": ends - ends // 2}


def offloaded_optimizer(spec: RunSpec) -> Iterator[Change]:
    """Optimizer states offloaded to host memory, if the device has its own memory."""
    if spec.zero.stage > 0 and spec.zero.offload_optimizer == "none" and spec.hardware.device != "cpu":
        cost = "a wait for the CPU and PCIe in each step: optimizer states are kept in host memory"
        yield set_to(spec, cost, {"zero.offload_optimizer": "cpu"})


def offloaded_parameters(spec: RunSpec) -> Iterator[Change]:
    """Parameters offloaded to host memory too, if the device has its own memory."""
    if spec.zero.stage == 3 and spec.zero.offload_parameters == "none" and spec.hardware.device != "cpu":
        cost = "PCIe transfers in both passes: parameters are kept in host memory"
        optimizer = {"zero.offload_optimizer": "cpu"} if spec.zero.offload_optimizer == "none" else {}
        yield set_to(spec, cost, {"zero.offload_parameters": "cpu", **optimizer})


def whole_node(spec: RunSpec) -> Iterator[Change]:
    """Twice, four times, ... the GPUs of a node, up to a typical node of 8."""
    count = spec.cluster.gpus_per_node
    while spec.hardware.device == "cuda" and count < _NODE:
        count = min(2 * count, _NODE)
        yield _more(spec, {"cluster.gpus_per_node": count})


def fewer_ranks(spec: RunSpec) -> Iterator[Change]:
    """Half the CPU ranks, which share one host's memory."""
    if spec.hardware.device == "cpu" and spec.cluster.gpus_per_node > 1:
        yield _more(spec, {"cluster.gpus_per_node": spec.cluster.gpus_per_node // 2})


def more_nodes(spec: RunSpec) -> Iterator[Change]:
    """Twice to 64 times the nodes."""
    for factor in (2, 4, 8, 16, 32, 64):
        yield _more(spec, {"cluster.nodes": spec.cluster.nodes * factor})


def _more(spec: RunSpec, settings: dict[str, object]) -> Change:
    change = set_to(spec, "", settings, stays=True)
    before, after = spec.global_batch_size, change.spec.global_batch_size
    batch = f"; a change of the training: steps of {after} sequences instead of {before}" if after != before else ""
    noun = "GPUs" if spec.hardware.device == "cuda" else "CPU ranks"
    return replace(change, cost=f"{change.spec.gpus} {noun} instead of {spec.gpus}{batch}")


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
    frozen_in_bf16,
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
"""Changes of what is kept on disk, the only ones tried if the disk alone is too small."""

GIVES_UP: dict[Neighbour, int] = {
    no_export: 1,
    last_checkpoint_only: 1,
    no_checkpoint: 2,
    low_rank_adapter: 3,
    shorter_sequences: 3,
}
"""Changes that give up more than speed and precision, and so rank behind all others, however fast they are."""

ELSEWHERE = frozenset({*ON_DISK, fewer_readers, saves_in_the_foreground, no_export})
"""Changes of what is in host memory and on disk, which leave the device's memory as it is."""

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
"""``ELSEWHERE``, and changes of what a step or a save holds, which leave what persists between steps as it is."""

ANOTHER_TRAINING = frozenset({low_rank_adapter, shorter_sequences})
"""Changes of the training itself: one of them alone is not answer enough if a pair of other changes suffices."""

TRAINS_OTHERS = frozenset({low_rank_adapter})
"""Changes of which parameters are trained, which a run that has already started cannot take."""
