"""Trace a run's allocations by running the worker's own code on fake tensors: ``python -m launcher.worker.trace``.

It needs no GPU and no peers: the process group answers at once (torch's "fake" backend). Every storage that the code
allocates, resizes and frees is recorded, and replayed through a model of torch's caching allocator.
"""

from collections.abc import Iterator
from dataclasses import replace

from launcher.estimate import families
from launcher.spec import RunSpec, edit
from launcher.worker import TrainingError

_FIRST_DEPTH = 4
_MOST_LAYERS = 16
"""Layers that take a few seconds with one micro-batch. Allocated bytes are linear in the depth from four layers on; the
allocator's overhead is not, so a deeper model gets the overhead of this many layers."""

_MICRO_BATCHES = 2
"""The first has no earlier gradients to add to, the last adds to them and reduces; those between are all alike."""


def refuse(spec: RunSpec) -> None:
    """Raise TrainingError with every reason if a run cannot be traced."""
    if found := "; ".join(_reasons(spec)):
        raise TrainingError(found)


def _reasons(spec: RunSpec) -> Iterator[str]:
    if spec.backend.name not in ("fsdp", "deepspeed"):
        yield f"the worker of backend={spec.backend.name} does not run on fake tensors"
    if spec.checkpointing.offload or (spec.zero.offload_optimizer, spec.zero.offload_parameters) != ("none", "none"):
        yield "offload moves tensors between two memories, which one fake device cannot tell apart"
    if spec.backend.name == "deepspeed":
        yield from _of_deepspeed(spec)
    if spec.parallel.pipeline > 1:
        yield "a pipeline stage waits for tensors from other stages, and a trace has none"
    if families.of(spec.model).traits.observed and len(depths(spec)) > 1:
        yield "the model is too deep to trace whole, and launch cannot shorten one whose layers no formula describes"
    if spec.hardware.device == "cuda" and spec.adapter.bits == 8:
        yield "adapter.quant_type=int8 looks for outliers on a GPU, and fake tensors have no values"
    yield from _of_the_optimizer(spec)
    if spec.train.compile:
        yield "train.compile=true replaces the operations that a trace records"


def _of_the_optimizer(spec: RunSpec) -> Iterator[str]:
    name, cuda = spec.optimizer.name, spec.hardware.device == "cuda"
    if name == "adafactor":
        yield "optimizer=adafactor reads norms of its tensors, and fake tensors have no values"
    elif name in ("adamw_8bit", "adamw_4bit") and cuda and spec.backend.name == "fsdp":
        yield f"optimizer={name} compiles its step on a GPU, which replaces the operations that a trace records"
    elif name == "paged_adamw_8bit" and cuda:
        yield "optimizer=paged_adamw_8bit has states that the driver moves between GPU and host memory"


def _of_deepspeed(spec: RunSpec) -> Iterator[str]:
    if spec.parallel.tensor > 1:
        yield "a trace does not support the process groups that AutoTP makes"
    if spec.adapter.bits:
        yield "bitsandbytes makes its weights only from real tensors"


def depths(spec: RunSpec) -> tuple[int, ...]:
    """The numbers of layers to trace: the run's own, or two from which the run's own is extrapolated."""
    layers = spec.model.num_hidden_layers
    first = _FIRST_DEPTH + (spec.checkpointing.layers or 0) + spec.model.first_dense_layers
    last = max(first + 2, _MOST_LAYERS // min(_MICRO_BATCHES, spec.gradient_accumulation))
    return (first, last) if layers > last else (layers,)


def adapt_run(spec: RunSpec, layers: int) -> RunSpec:
    """The run with this many layers, at most two micro-batches, drawn initial weights and a GPU's defaults."""
    optimizer, model = spec.optimizer, spec.model
    if spec.hardware.device == "cuda" and optimizer.fused is None and optimizer.foreach is None:
        # The FSDP worker asks for the fused kernel, and DeepSpeed's Adam is fused; its SGD is torch's default.
        one_kernel = spec.backend.name == "fsdp" or optimizer.name == "adamw"
        optimizer = replace(optimizer, fused=True) if one_kernel else replace(optimizer, foreach=True)
    attention = "sdpa" if model.attention == "flash" else model.attention
    model = replace(model, num_hidden_layers=layers, attention=attention, weights=None)
    fewer = edit.with_micro_batches(spec, min(_MICRO_BATCHES, spec.gradient_accumulation))
    return replace(fewer, model=model, optimizer=optimizer)
