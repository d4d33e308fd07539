"""Pipeline stages by DeepSpeed's PipelineModule: what it takes, and what it holds beside its layers' activations."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.errors import ConfigError
from launcher.memory.moments import ALWAYS, Moment
from launcher.memory.terms import MemoryTerm, Pile
from launcher.rank.model import RankModel
from launcher.rank.tensors import SavedTensor
from launcher.spec import RunSpec, edit

_SOURCE = "DeepSpeed 0.19.8 runtime/pipe/engine.py, pipe_buffers and _allocate_or_extend_buffers"

_PASSES: frozenset[Moment] = ALWAYS - {"load", "clip", "step", "idle", "checkpoint_save"}

_NEUTRAL: dict[str, tuple[object, str]] = {
    "parallel.tensor": (1, "its grid of ranks has no axis for AutoTP's"),
    "parallel.ulysses": (1, "its grid of ranks has no axis for those that share a sequence"),
    "parallel.virtual_pipeline": (1, "a stage is one run of layers"),
    "parallel.schedule": ("1f1b", "it has one schedule, 1F1B (runtime/pipe/schedule.py)"),
    "zero.overlap_comm": (None, "it reduces gradients once, after the last backward pass"),
    "zero.offload_optimizer": ("none", "offloaded optimizer states beside stages are not tested in this version"),
    "adapter.name": ("none", "an adapter's frozen layers beside stages are not tested in this version"),
}
"""What its stages do not go with: the value that asks for nothing, and the reason."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """What PipelineModule would drop, or get wrong; that ZeRO 2 and 3 do not go with it is said by ``check``."""
    if spec.parallel.pipeline == 1:
        return
    for path, (neutral, reason) in _NEUTRAL.items():
        value = edit.value_at(spec, path)
        if value not in (neutral, False):
            rule = f"DeepSpeed's PipelineModule does not do it: {reason}"
            yield ConfigError(path, value, rule, [edit.override(path, neutral), "parallel.pipeline=1"])
    if spec.zero.stage == 0 and spec.precision.compute != "fp32":
        rule = (
            "without ZeRO, PipelineModule steps in bf16 by BF16_Optimizer, whose memory and maths are not tested here"
        )
        yield ConfigError("zero.stage", 0, rule, ["zero=1", "precision=fp32"])


def buffers(rank: RankModel) -> Iterator[MemoryTerm]:
    """What goes from stage to stage: ``size s b h`` each.

    One buffer, kept between steps, receives states and gradients alike. Of every micro-batch in flight a stage keeps
    the states that it received, of which its layers run on a clone, and those that it sent, until their backward pass;
    the last stage keeps what its layers made of two micro-batches, since nothing takes it out of ``pipe_buffers``.
    """
    view, stages = rank.view, rank.view.stages
    if stages == 1:
        return
    width = rank.engine.size * rank.spec.model.hidden_size
    one = rank.bytes_of([SavedTensor(name="states", bytes=width, share="token", part="input")])
    made = min(2, rank.spec.gradient_accumulation) if view.head else 0
    flying = int(view.in_flight)
    during = flying * ((view.stage > 0) + (not view.head)) + max(made - 1, 0)  # The last is the loss's own input.
    yield _term("activations", ALWAYS - {"load"}, one, "buffer for states and gradients of other stages")
    yield _term("activations", _PASSES, during * one, f"states that stages exchange: {during} x {one:,} B")
    yield _term("activations", ALWAYS - _PASSES - {"load"}, made * one, f"last states: {made} x {one:,} B")


def buckets(rank: RankModel) -> Iterator[MemoryTerm]:
    """ZeRO 1's bucket, which in a pipeline lies there from the first backward pass to the last, and at the end another.

    ``reduce_gradients(pipeline_parallel=True)`` (runtime/zero/stage_1_and_2.py) makes one of its own beside it.
    """
    if rank.view.stages == 1:
        return
    size = rank.dtypes.size("gradients") * rank.spec.zero.reduce_bucket_size
    forward: frozenset[Moment] = frozenset(("forward", "output", "loss", "loss_backward"))
    if rank.spec.gradient_accumulation > 1:
        yield _term("reduce_buffers", forward, size, "the bucket between micro-batches")
    yield _term("reduce_buffers", frozenset(("root_backward",)), size, "a second bucket for the reduction at the end")


def _term(pile: Pile, moments: frozenset[Moment], size: int, formula: str) -> MemoryTerm:
    return MemoryTerm(pile=pile, moments=moments, bytes=size, formula=formula, source=_SOURCE)
