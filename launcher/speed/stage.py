"""One pipeline stage over one micro-batch: its blocks and the ends of the model, and the message to the next stage."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from launcher.rank.counts import kinds_of, padded
from launcher.rank.engine import EngineTraits
from launcher.rank.family import Family
from launcher.rank.view import RankView
from launcher.spec import AdapterSpec, CheckpointingSpec, ModelSpec, RunSpec
from launcher.speed import collectives, ends
from launcher.speed.block import BlockKey, BlockPasses, block
from launcher.speed.passes import NOTHING, Pass
from launcher.speed.result import StageTime
from launcher.speed.shape import Shape

_AUTOGRAD = 2
"""Kernels that autograd's engine starts in the time in which Python starts one."""


class StagePasses(NamedTuple):
    """One micro-batch's passes on a stage, and their seconds with what the host takes."""

    forward: Pass
    backward: Pass
    again: Pass
    forward_seconds: float
    backward_seconds: float


class StageKey(NamedTuple):
    """What a stage's passes depend on beside the shape of a rank's micro-batch.

    Attributes:
        family: The family of the model.
        model: The model.
        adapter: The adapter.
        kinds: The kinds of its blocks, of ``kinds_of``.
        ends: True if it has the embedding, and True if it has the head.
        engine: The implementation that runs.
        checkpointing: Of the activations.
        chunked: True if the loss runs over pieces of the sequence.
        messages: True if there are other stages.
    """

    family: Family
    model: ModelSpec
    adapter: AdapterSpec
    kinds: tuple[tuple[str, int, int], ...]
    ends: tuple[bool, bool]
    engine: EngineTraits
    checkpointing: CheckpointingSpec
    chunked: bool
    messages: bool

    @property
    def layers(self) -> int:
        """Its blocks."""
        return sum(count for _, _, count in self.kinds)


class Stage(NamedTuple):
    """One rank of a pipeline stage, and one micro-batch's passes on it."""

    view: RankView
    passes: StagePasses
    time: StageTime


def stage_of(spec: RunSpec, view: RankView, family: Family, engine: EngineTraits, shape: Shape) -> Stage:
    """One stage, timed.

    Args:
        spec: The run.
        view: One rank of the stage.
        family: The family of the model.
        engine: The implementation that runs.
        shape: A rank's part of a micro-batch.
    """
    model, adapter, staged = spec.model, spec.adapter, spec.parallel.pipeline > 1
    key = StageKey(
        family,
        model,
        adapter,
        kinds_of(family, model, view.layers, first_apart=adapter.name != "none"),
        (view.embedding, view.head),
        engine,
        spec.checkpointing,
        spec.train.loss == "chunked",
        staged,
    )
    passes = _passes_of(key, shape)
    time = StageTime(
        stage=view.stage,
        forward_seconds=passes.forward_seconds,
        backward_seconds=passes.backward_seconds,
        send_seconds=_send(spec, shape) if staged else 0.0,
    )
    return Stage(view, passes, time)


@lru_cache(maxsize=8192)
def _passes_of(key: StageKey, shape: Shape) -> StagePasses:
    """Sum the blocks and ends of one stage; layouts that differ in schedule or sharding alone share it."""
    execution = shape.execution
    forward = backward = again = NOTHING
    for _, layer, count in key.kinds:
        own = BlockKey(key.family, key.model, key.adapter, layer)
        ahead, behind, repeated = block(own, shape, key.checkpointing)
        forward, backward = forward.plus(ahead.times(count)), backward.plus(behind.times(count))
        again = again.plus(repeated.times(_recomputed(key, count)))
    for ahead, behind, repeated in _ends(key, shape):
        forward, backward, again = forward.plus(ahead), backward.plus(behind), again.plus(repeated)
    launch = 0.0 if execution.graphs else execution.launch_seconds
    staged = execution.staged_seconds * shape.tensor * key.layers if key.messages and shape.tensor > 1 else 0.0
    # Three passes, or two without recomputation, share what the host does beside them.
    share = staged / (3 if again.launches else 2)
    return StagePasses(
        forward,
        backward,
        again,
        forward.seconds(launch, share),
        backward.seconds(launch / _AUTOGRAD, share) + again.seconds(launch, share if again.launches else 0),
    )


def _recomputed(key: StageKey, count: int) -> float:
    """Blocks of a kind that are checkpointed: all, or as many of a stage as ``checkpointing.layers`` says."""
    how = key.checkpointing
    if how.method != "block" or how.layers is None:
        return count
    return count * min(1.0, how.layers / max(1, key.layers))


def _ends(key: StageKey, shape: Shape) -> Iterator[BlockPasses]:
    model, engine = key.model, key.engine
    embedding, head = key.ends
    if embedding:
        yield ends.embedding(model, shape)
    if head:
        yield ends.head(
            model,
            padded(model.vocab_size, engine.vocabulary_multiple),
            shape,
            trained=key.adapter.name == "none",
            split=not (engine.whole_embedding and model.tie_word_embeddings),
            parallel_loss=engine.vocabulary_parallel,
            chunked=key.chunked,
        )


def _send(spec: RunSpec, shape: Shape) -> float:
    """One micro-batch's hidden states to the next stage, and the host's time for the message."""
    size = shape.residual_tokens * spec.model.hidden_size * shape.residual_size
    stride = spec.gpus // spec.parallel.pipeline
    sent = collectives.seconds("send", size, shape.group(2, stride), shape.network)
    return sent + shape.execution.message_seconds
