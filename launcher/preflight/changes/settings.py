"""Neighbours that train the same ranks with other settings.

Each change starts from the run as it is and is offered only where it changes anything. Where a group stands as one of
its options has it, the change is spelt as another option of that group (``checkpointing=full``); where the user has
refined it, single keys are set, so that nothing else of the group is lost.
"""

from __future__ import annotations

from collections.abc import Iterator

from launcher import backends
from launcher.spec import PrecisionSpec, RunSpec, nearest
from launcher.spec.change import Change, batches, set_to

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
    if spec.save.every is not None and spec.save.keep > 1:
        yield set_to(spec, "older checkpoints", {"save.keep": 1}, stays=True)


def last_checkpoint_only(spec: RunSpec) -> Iterator[Change]:
    """One checkpoint, after the last step."""
    if spec.save.every is not None and spec.save.last:
        yield set_to(spec, "checkpoints on the way: a crash loses all steps", {"save.every": None}, stays=True)


def no_checkpoint(spec: RunSpec) -> Iterator[Change]:
    """No checkpoint at all, for a run that is only measured or tried."""
    settings: dict[str, object] = {"save.every": None} if spec.save.every is not None else {}
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
    for smaller in reversed(nearest.divisors(size)[:-1]):
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
        cost = "moments of 8 bits, which change the numbers of the training, and the package bitsandbytes"
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
    if spec.adapter.name == "none":
        cost = "another training: of an adapter alone, beside frozen weights"
        yield set_to(spec, cost, {"adapter.name": "lora"}, ("adapter=lora",), stays=True)
    if spec.adapter.name != "qlora":
        cost = "another training: of an adapter alone, beside frozen weights of 4 bits"
        yield set_to(spec, cost, {"adapter.name": "qlora"}, ("adapter=qlora",), stays=True)


def shorter_sequences(spec: RunSpec) -> Iterator[Change]:
    """A half, a quarter, ... of the tokens of a sequence, not below 512."""
    length = spec.sequence_length
    while (length := length // 2) >= 512:
        cost = f"sequences of {length} tokens, not {spec.sequence_length}: another training"
        yield set_to(spec, cost, {"train.sequence_length": length}, stays=True)
