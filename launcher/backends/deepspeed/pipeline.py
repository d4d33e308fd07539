"""Pipeline stages by DeepSpeed's PipelineModule: what it takes, and what it holds beside its layers' activations."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.base.errors import ConfigError
from launcher.estimate.memory.moments import (
    BEFORE_BLOCKS_BACKWARD,
    BETWEEN_PASSES,
    PASSES,
    ROOT_BACKWARD,
    TRAINING,
    Moments,
)
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.model import RankModel
from launcher.spec import RunSpec, edit

_SOURCE = "DeepSpeed 0.19.8 runtime/pipe/engine.py, pipe_buffers and _allocate_or_extend_buffers"

_NEUTRAL: dict[str, tuple[object, str]] = {
    "parallel.tensor": (1, "its grid of ranks has no axis for AutoTP's"),
    "parallel.ulysses": (1, "its grid of ranks has no axis for those that share a sequence"),
    "parallel.virtual_pipeline": (1, "a stage is one run of layers"),
    "parallel.schedule": ("1f1b", "it has one schedule, 1F1B (runtime/pipe/schedule.py)"),
    "zero.overlap_comm": (None, "it reduces gradients once, after the last backward pass"),
    "zero.offload_optimizer": ("none", "offloaded optimizer states beside stages are not tested in this version"),
    "adapter.name": ("none", "an adapter's frozen layers beside stages are not tested in this version"),
}
"""Settings that its stages do not go with: the value that asks for nothing, and the reason."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Settings that PipelineModule would drop or get wrong; of ZeRO 2 and 3 ``check`` of the backend speaks."""
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
    """Hidden states that go from stage to stage: ``z h tok`` each.

    One buffer, kept between steps, receives states and gradients alike. Of every micro-batch in flight a stage keeps
    the states that it received, of which its layers run on a clone, and those that it sent, until their backward pass;
    the last stage keeps what its layers made of two micro-batches, since nothing takes it out of ``pipe_buffers``.
    """
    view, stages = rank.view, rank.view.stages
    if stages == 1:
        return
    made = min(2, rank.spec.gradient_accumulation) if view.head else 0
    neighbours = (1 if view.stage > 0 else 0) + (0 if view.head else 1)
    during = int(view.in_flight) * neighbours + max(made - 1, 0)  # The last is the loss's own input.
    yield _states(rank, TRAINING, "buffer for states and gradients of other stages", 1)
    yield _states(rank, PASSES, "states that stages exchange", during)
    yield _states(rank, BETWEEN_PASSES, "last states", made)


def _states(rank: RankModel, moments: Moments, what: str, n: int) -> MemoryTerm:
    z, h, tok = rank.engine.size, rank.spec.model.hidden_size, rank.tokens
    return term("activations", moments, what, "n * z * h * tok", _SOURCE, n=n, z=z, h=h, tok=tok)


def buckets(rank: RankModel) -> Iterator[MemoryTerm]:
    """ZeRO 1's bucket, which in a pipeline lies there from the first backward pass to the last, and at the end another.

    ``reduce_gradients(pipeline_parallel=True)`` (runtime/zero/stage_1_and_2.py) makes one of its own beside it.
    """
    if rank.view.stages == 1:
        return
    values = {"z_grad": rank.dtypes.size("gradients"), "bucket": rank.spec.zero.reduce_bucket_size}
    expression = "z_grad * bucket"
    if rank.spec.gradient_accumulation > 1:
        what = "the bucket between micro-batches"
        yield term("reduce_buffers", BEFORE_BLOCKS_BACKWARD, what, expression, _SOURCE, **values)
    what = "a second bucket for the reduction at the end"
    yield term("reduce_buffers", ROOT_BACKWARD, what, expression, _SOURCE, **values)
