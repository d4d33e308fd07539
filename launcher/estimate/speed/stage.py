"""The stages of a pipeline over one micro-batch: blocks, the ends of the model, and the message to the next stage."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from launcher.estimate.rank.counts import kinds_of, padded
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.execution import of_blocks
from launcher.estimate.rank.family import Family
from launcher.estimate.rank.stages import Cut, alike, cut_of, rank_layers
from launcher.estimate.speed import collectives, ends
from launcher.estimate.speed.block import BlockKey, BlockPasses, block
from launcher.estimate.speed.passes import NOTHING, Pass
from launcher.estimate.speed.result import StageTime
from launcher.estimate.speed.shape import Shape
from launcher.spec import AdapterSpec, CheckpointingSpec, ModelSpec, RunSpec

_AUTOGRAD = 2
"""Kernels that autograd's engine starts in the time in which Python starts one."""


class LineKey(NamedTuple):
    """What the passes of all stages depend on beside the shape of a rank's micro-batch.

    Attributes:
        family: The family of the model.
        model: The model.
        adapter: The adapter.
        cut: The layers of each stage.
        engine: The implementation that runs.
        checkpointing: Of the activations.
        chunked: True if the loss runs over pieces of the sequence.
        stride: GPUs from a rank to the same one of the next stage.
    """

    family: Family
    model: ModelSpec
    adapter: AdapterSpec
    cut: Cut
    engine: EngineTraits
    checkpointing: CheckpointingSpec
    chunked: bool
    stride: int


class Stage(NamedTuple):
    """One micro-batch's passes on a stage, forward and backward also together, and their time with the host's."""

    forward: Pass
    backward: Pass
    both: Pass
    again: Pass
    time: StageTime


class Line(NamedTuple):
    """The stages of a pipeline; equal ones are one object, of the first of them, and ``slowest`` is one of them."""

    stages: tuple[Stage, ...]
    slowest: Stage


def line_of(spec: RunSpec, family: Family, engine: EngineTraits, shape: Shape) -> Line:
    """The stages of a run, timed.

    Args:
        spec: The run.
        family: The family of the model.
        engine: The implementation that runs.
        shape: A rank's part of a micro-batch.
    """
    key = LineKey(
        family,
        spec.model,
        spec.adapter,
        cut_of(spec),
        engine,
        spec.checkpointing,
        spec.train.loss == "chunked",
        spec.gpus // spec.parallel.pipeline,
    )
    return _line(key, shape)


@lru_cache(maxsize=4096)
def _line(key: LineKey, shape: Shape) -> Line:
    """Layouts that differ in their schedule or in what is sharded alone share it."""
    places = alike(key.family, key.model, key.cut, first_apart=key.adapter.name != "none")
    distinct = {stage: _stage(key, shape, stage) for stage in dict.fromkeys(places)}
    slowest = max(distinct.values(), key=lambda stage: stage.time.seconds)
    return Line(tuple(distinct[place] for place in places), slowest)


def _stage(key: LineKey, shape: Shape, stage: int) -> Stage:
    """Sum the blocks and ends of one stage."""
    execution, blocks = shape.execution, shape._replace(execution=of_blocks(shape.execution))
    layers, trained = rank_layers(key.cut, stage), key.adapter.name == "none"
    forward = backward = again = NOTHING
    for _, layer, count in kinds_of(key.family, key.model, layers, first_apart=not trained):
        own = BlockKey(key.family, key.model, key.adapter, layer)
        ahead, behind, repeated = block(own, blocks, key.checkpointing)
        forward, backward = forward.plus(ahead.times(count)), backward.plus(behind.times(count))
        again = again.plus(repeated.times(_recomputed(key.checkpointing, len(layers), count)))
    for ahead, behind, repeated in _ends(key, shape, stage):
        forward, backward, again = forward.plus(ahead), backward.plus(behind), again.plus(repeated)
    launch = 0.0 if execution.graphs else execution.launch_seconds
    staged = execution.staged_seconds * shape.tensor * len(layers) if key.cut.stages > 1 < shape.tensor else 0.0
    # Three passes, or two without recomputation, share what the host does beside them.
    share = staged / (3 if again.launches else 2)
    time = StageTime(
        stage=stage,
        forward_seconds=forward.seconds(launch, share),
        backward_seconds=backward.seconds(launch / _AUTOGRAD, share)
        + again.seconds(launch, share if again.launches else 0),
        send_seconds=_send(key, shape) if key.cut.stages > 1 else 0.0,
    )
    return Stage(forward, backward, forward.plus(backward), again, time)


def _recomputed(how: CheckpointingSpec, layers: int, count: int) -> float:
    """Blocks of a kind that are checkpointed: all, or as many of a stage as ``checkpointing.layers`` says."""
    if how.method != "block" or how.layers is None:
        return count
    return count * min(1.0, how.layers / max(1, layers))


def _ends(key: LineKey, shape: Shape, stage: int) -> Iterator[BlockPasses]:
    model, engine = key.model, key.engine
    embedding, head = key.cut.ends(stage)
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


def _send(key: LineKey, shape: Shape) -> float:
    """One micro-batch's hidden states to the next stage, and the host's time for the message."""
    size = shape.residual_tokens * key.model.hidden_size * shape.residual_size
    sent = collectives.seconds("send", size, shape.group(2, key.stride), shape.network)
    return sent + shape.execution.message_seconds
