"""Allocations of a run, by the workers' own code under fake tensors: ``python -m launcher.worker.trace``.

No GPU and no peers: the process group answers at once (torch's "fake" backend). Every storage that the code makes,
resizes and drops is followed, and played back through a model of torch's caching allocator.
"""

from collections.abc import Iterator
from dataclasses import replace

from launcher.estimate import families
from launcher.spec import RunSpec, edit
from launcher.worker import TrainingError

_FIRST_DEPTH = 4
_MOST_LAYERS = 16
"""A few seconds for one micro-batch. What is allocated is linear in the depth from four layers on; the allocator's
loss is not, so that of a deeper model is read off this many layers."""

_MICRO_BATCHES = 2
"""The first adds no gradients to earlier ones, the last does and is the one that reduces; those between are alike."""


def refuse(spec: RunSpec) -> None:
    """Refuse a run that cannot be traced, by a :class:`TrainingError` with every reason."""
    if found := "; ".join(_reasons(spec)):
        raise TrainingError(found)


def _reasons(spec: RunSpec) -> Iterator[str]:
    if spec.backend.name not in ("fsdp", "deepspeed"):
        yield f"backend={spec.backend.name} is not one of the workers that run under fake tensors"
    if spec.checkpointing.offload or (spec.zero.offload_optimizer, spec.zero.offload_parameters) != ("none", "none"):
        yield "offload moves tensors between two memories that one fake device cannot tell apart"
    if spec.backend.name == "deepspeed":
        yield from _of_deepspeed(spec)
    if spec.parallel.pipeline > 1:
        yield "a pipeline stage waits for what the others send, and under fake tensors nobody does"
    if families.of(spec.model).traits.observed and len(depths(spec)) > 1:
        yield "a model whose layers are of kinds that no formula describes is not made shallower here"
    if spec.hardware.device == "cuda" and spec.adapter.bits == 8:
        yield "adapter.quant_type=int8 looks for outliers on a GPU, and fake tensors have no values"
    yield from _of_the_optimizer(spec)
    if spec.train.compile:
        yield "train.compile=true replaces the operations that are followed"


def _of_the_optimizer(spec: RunSpec) -> Iterator[str]:
    name, cuda = spec.optimizer.name, spec.hardware.device == "cuda"
    if name == "adafactor":
        yield "optimizer=adafactor reads norms of its tensors, and fake ones have no values"
    elif name in ("adamw_8bit", "adamw_4bit") and cuda and spec.backend.name == "fsdp":
        yield f"optimizer={name} compiles its step on a GPU, which replaces the operations that are followed"
    elif name == "paged_adamw_8bit" and cuda:
        yield "optimizer=paged_adamw_8bit has states that a driver moves between two memories"


def _of_deepspeed(spec: RunSpec) -> Iterator[str]:
    if spec.parallel.tensor > 1:
        yield "the groups of ranks that AutoTP makes are not followed under fake tensors"
    if spec.adapter.name == "qlora":
        yield "bitsandbytes makes its classes of weights of real tensors alone"


def depths(spec: RunSpec) -> tuple[int, ...]:
    """The numbers of layers to trace: the run's own, or two that the rest follows from."""
    layers = spec.model.num_hidden_layers
    first = _FIRST_DEPTH + (spec.checkpointing.layers or 0) + spec.model.first_dense_layers
    last = max(first + 2, _MOST_LAYERS // min(_MICRO_BATCHES, spec.gradient_accumulation))
    return (first, last) if layers > last else (layers,)


def adapt_run(spec: RunSpec, layers: int) -> RunSpec:
    """The run at a depth, with at most two micro-batches, from fresh values, with a GPU's defaults."""
    optimizer, model = spec.optimizer, spec.model
    if spec.hardware.device == "cuda" and optimizer.fused is None and optimizer.foreach is None:
        # Our worker asks for one kernel, and DeepSpeed's Adam is one; its SGD is torch's, left to torch's own choice.
        one_kernel = spec.backend.name == "fsdp" or optimizer.name == "adamw"
        optimizer = replace(optimizer, fused=True) if one_kernel else replace(optimizer, foreach=True)
    attention = "sdpa" if model.attention == "flash" else model.attention
    model = replace(model, num_hidden_layers=layers, attention=attention, weights=None)
    fewer = edit.with_micro_batches(spec, min(_MICRO_BATCHES, spec.gradient_accumulation))
    return replace(fewer, model=model, optimizer=optimizer)
