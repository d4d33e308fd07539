"""The stages of a pipeline: their passes over one micro-batch, their messages, and the idle time of the schedule.

A stage is its blocks and, at the ends of the model, the embedding, the output projection and the loss.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

from launcher.estimate.rank import adapters
from launcher.estimate.rank.counts import block_weights, kinds_of, padded
from launcher.estimate.rank.engine import EngineTraits, of_blocks
from launcher.estimate.rank.family import Family
from launcher.estimate.rank.recomputed import method
from launcher.estimate.rank.stages import FOLDED, Cut, alike, cut_of, predicted_layers, rank_layers
from launcher.estimate.speed import collectives, gemm
from launcher.estimate.speed.block import BlockKey, BlockPasses, block
from launcher.estimate.speed.passes import NOTHING, Pass
from launcher.estimate.speed.result import StageTime
from launcher.estimate.speed.shape import Shape
from launcher.estimate.speed.terms import SpeedTerm, term
from launcher.spec import AdapterSpec, CheckpointingSpec, ModelSpec, RunSpec
from launcher.spec.values import beside_products

_AUTOGRAD = 2  # Kernels that autograd's engine launches in the time that Python takes for one.

_BUBBLE = "arXiv:2104.04473, section 2.2; zero bubble arXiv:2401.10241, table 1"
_FOLDED = "the tables of torch/distributed/pipelining/schedules.py"

_IDLE = {"1f1b": Fraction(1), "gpipe": Fraction(1), "interleaved": Fraction(1)}
"""A schedule's bubble as a share of 1F1B's; a third where backward passes are split (:func:`bubble`)."""


class StagesKey(NamedTuple):
    """All that the passes of the stages depend on, apart from the shape of a rank's micro-batch."""

    family: Family  # The family of the model.
    model: ModelSpec  # The model.
    adapter: AdapterSpec  # The adapter.
    cut: Cut  # The layers of each stage.
    engine: EngineTraits  # The implementation of the model.
    checkpointing: CheckpointingSpec  # Activation checkpointing.
    chunked: bool  # True if the loss runs over chunks of the sequence.
    stride: int  # GPUs between a rank and its counterpart on the next stage.


class Stage(NamedTuple):
    """One micro-batch's passes on a stage, and their time including the host's."""

    forward: Pass
    backward: Pass
    both: Pass  # Forward and backward together.
    again: Pass  # Recomputation.
    time: StageTime
    beside_network: StageTime  # The time in which the stage itself does not use the network between domains.


class Stages(NamedTuple):
    """The stages of a pipeline; equal stages are one object, the first of them, and ``slowest`` is one of them."""

    stages: tuple[Stage, ...]
    slowest: Stage


def line_of(spec: RunSpec, family: Family, engine: EngineTraits, shape: Shape) -> Stages:
    """The timed stages of a run."""
    chunked, stride = spec.train.loss == "chunked", spec.gpus // spec.parallel.pipeline
    key = StagesKey(family, spec.model, spec.adapter, cut_of(spec), engine, spec.checkpointing, chunked, stride)
    return _line(key, shape)


@lru_cache(maxsize=4096)
def _line(key: StagesKey, shape: Shape) -> Stages:
    """The timed stages, cached: layouts that differ only in schedule or sharding share them."""
    places = alike(key.family, key.model, key.cut, first_apart=key.adapter.name != "none")
    distinct = {stage: _stage(key, shape, stage) for stage in dict.fromkeys(places)}
    slowest = max(distinct.values(), key=lambda stage: stage.time.seconds)
    return Stages(tuple(distinct[place] for place in places), slowest)


def _stage(key: StagesKey, shape: Shape, stage: int) -> Stage:
    execution, blocks = shape.execution, shape._replace(execution=of_blocks(shape.execution))
    layers, trained = rank_layers(key.cut, stage), key.adapter.name == "none"
    parts: list[tuple[BlockPasses, int, float]] = []  # Each with its count, and how many of them are recomputed.
    for _, layer, count in kinds_of(key.family, key.model, layers, first_apart=not trained):
        own = BlockKey(key.family, key.family.traits.computed(key.model), key.adapter, layer)
        parts.append((block(own, blocks, key.checkpointing), count, _recomputed(key, len(layers), count)))
    if further := predicted_layers(key.cut, stage):
        parts.append((_further(key, blocks), further, further))
    parts += ((end, 1, 1) for end in _ends(key, shape, stage))
    forward = backward = again = NOTHING
    for (ahead, behind, repeated), count, recomputed in parts:
        forward, backward = forward.plus(ahead.times(count)), backward.plus(behind.times(count))
        again = again.plus(repeated.times(recomputed))
    launch = 0.0 if execution.graphs else execution.launch_seconds
    staged = execution.staged_seconds * shape.tensor * len(layers) if key.cut.stages > 1 < shape.tensor else 0.0
    # Three passes, or two without recomputation, share the host's other work.
    weights = (block_weights(key.family, key.model, layer) for layer in layers if execution.hook_seconds)
    hooked = sum(len(adapters.weights(each, key.adapter)) for each in weights)
    share = staged / (3 if again.launches else 2) + execution.hook_seconds * hooked
    back = backward.seconds(launch / _AUTOGRAD, share) + again.seconds(launch, share if again.launches else 0)
    sent = _send(key, shape) if key.cut.stages > 1 else 0.0
    time = StageTime(
        stage=stage, forward_seconds=forward.seconds(launch, share), backward_seconds=back, send_seconds=sent
    )
    taken = _on_network(backward, shape) + _on_network(again, shape)
    beside = replace(
        time,
        forward_seconds=max(0.0, time.forward_seconds - _on_network(forward, shape)),
        backward_seconds=max(0.0, back - taken),
    )
    return Stage(forward, backward, forward.plus(backward), again, time, beside)


def _on_network(one: Pass, shape: Shape) -> float:
    groups = (
        (one.tensor, shape.tensor, 1),
        (one.context, shape.context, shape.tensor),
        (one.expert, shape.expert, shape.expert_tensor),
    )
    return sum(seconds for seconds, ranks, stride in groups if seconds and shape.group(ranks, stride).domains > 1)


def _further(key: StagesKey, shape: Shape) -> BlockPasses:
    """A multi-token prediction layer: a block like the last one, and the projection of ``2 h`` inputs to ``h``."""
    last = BlockKey(key.family, key.model, key.adapter, key.model.num_hidden_layers - 1)
    ahead, behind, repeated = block(last, shape, key.checkpointing)
    n, k = -(-key.model.hidden_size // shape.tensor), 2 * key.model.hidden_size
    seconds, back, flops = gemm.both_passes(shape.tokens, n, k, shape.dtype, shape.card)
    forward = Pass(products=seconds, product_flops=flops, launches=4)
    backward = Pass(products=back, product_flops=2 * flops, launches=8)
    return BlockPasses(ahead.plus(forward), behind.plus(backward), repeated)


def _recomputed(key: StagesKey, layers: int, count: int) -> float:
    """Number of checkpointed blocks of a kind: all, or its share of a stage's ``checkpointing.layers``."""
    how = key.checkpointing
    if how.layers is None or method(how, key.engine) != "block":
        return count
    return count * min(1.0, how.layers / max(1, layers))


def _ends(key: StagesKey, shape: Shape, stage: int) -> Iterator[BlockPasses]:
    model, engine = key.model, key.engine
    embedding, head = key.cut.ends(stage)
    if embedding:
        yield _embedding(model, shape)
    if head:
        once = _head(
            model,
            padded(model.vocab_size, engine.vocabulary_multiple),
            shape,
            trained=adapters.trains(key.family.head(model, model.vocab_size), key.adapter),
            split=not (engine.whole_embedding and model.tie_word_embeddings),
            parallel_loss=engine.vocabulary_parallel,
            chunked=key.chunked,
        )
        yield from repeat(once, 1 + model.mtp_layers)


def _send(key: StagesKey, shape: Shape) -> float:
    """Seconds of sending one micro-batch's hidden states to the next stage, with the host's time for the message."""
    size = shape.residual_tokens * key.model.hidden_size * shape.residual_size
    sent = collectives.seconds("send", size, shape.group(2, key.stride), shape.network)
    return sent + shape.execution.message_seconds


@lru_cache(maxsize=4096)
def _head(
    model: ModelSpec, vocabulary: int, shape: Shape, *, trained: bool, split: bool, parallel_loss: bool, chunked: bool
) -> BlockPasses:
    """The output projection and the loss: forward, backward, and the part that is recomputed.

    ``trained`` is true if the projection gets a gradient, ``split`` if tensor ranks share it, ``parallel_loss`` if they
    also share the loss, and ``chunked`` if the loss runs over chunks of the sequence, which backward recomputes.
    """
    n, m, dtype, card = -(-vocabulary // (shape.tensor if split else 1)), shape.tokens, shape.dtype, shape.card
    forward, backward, flops = gemm.both_passes(m, n, model.hidden_size, beside_products(dtype), card, trained=trained)
    seconds = card.memory_seconds(_loss_bytes(shape) * m * (n if parallel_loss or not split else vocabulary))
    ahead = Pass(products=forward, product_flops=flops, loss=seconds / 2, launches=10)
    behind = Pass(products=backward, product_flops=flops * (2 if trained else 1), loss=seconds / 2, launches=14)
    return BlockPasses(ahead, behind, ahead if chunked else NOTHING)


def _loss_bytes(shape: Shape) -> float:
    """Bytes that the cross entropy reads and writes per token and vocabulary entry, in both passes together.

    A fused kernel reads the logits and overwrites them with their gradient. Otherwise there are an fp32 copy (6), its
    softmax (8), the gradient (8) and its cast to the compute format (6); Megatron's vocabulary-parallel loss subtracts
    the maximum, exponentiates, sums and divides one after the other.
    """
    if shape.execution.fused_loss:
        return 4.0 * shape.size
    if shape.execution.compiled:
        return 14.0
    return 44.0 if shape.megatron else 28.0


def _embedding(model: ModelSpec, shape: Shape) -> BlockPasses:
    """The token embedding: each token's row is read and written, and its gradient added in fp32."""
    moved = 2.0 * shape.tokens * model.hidden_size * shape.residual_size
    forward = Pass(moved=moved, memory=shape.card.memory_seconds(moved), launches=3)
    return BlockPasses(forward, forward.times(2.0), NOTHING)


def bubble(spec: RunSpec, stages: Sequence[StageTime], stage: StageTime) -> SpeedTerm:
    """The pipeline bubble of a stage: one micro-batch's passes through the other stages, there and back.

    ``(p - 1) (f + b)`` for equal stages (arXiv:2104.04473, section 2.2), divided by ``v`` with ``v`` model chunks; for
    uneven stages the sum over the others. Where backward passes are split, the weights' part fills two thirds of it
    (arXiv:2401.10241, table 1), as in torch's folded stages. ZBV needs ``2 p - 1`` micro-batches for that; each
    missing one adds two idle passes of a chunk.
    """
    parallel = spec.parallel
    others = sum(one.seconds for one in stages) - stage.seconds
    what = f"filling and draining the pipeline ({parallel.schedule})"
    idle = _IDLE.get(parallel.schedule, Fraction(1, 3))
    if parallel.schedule == "zbv":
        missing = 2 * parallel.pipeline - 1 - spec.gradient_accumulation
        idle *= max(Fraction(1), Fraction(2 * missing, parallel.pipeline - 1))
    source = _FOLDED if parallel.schedule in FOLDED else _BUBBLE
    chunks = parallel.virtual_pipeline
    return term("bubble", what, "idle * t_others / v", source, idle=float(idle), t_others=others, v=chunks)


def idle_seconds(stages: Sequence[StageTime], schedule: str, chunks: int) -> float:
    """Lower bound on the seconds of :func:`bubble` for stages under a schedule with ``chunks`` model chunks."""
    seconds = [stage.seconds for stage in stages]
    return float(_IDLE.get(schedule, Fraction(1, 3))) * (sum(seconds) - max(seconds)) / chunks


def messages(spec: RunSpec, stages: Sequence[StageTime], *, overlaps: bool) -> SpeedTerm:
    """Messages that the slowest stage waits for: two per micro-batch and chunk, unless interleaved ones overlap."""
    one = max((stage.send_seconds for stage in stages), default=0.0)
    m, v, p = spec.gradient_accumulation, spec.parallel.virtual_pipeline, len(stages)
    exposed = 2 * one * (p - 1) if overlaps else None
    what, source = "messages between stages, there and back", "launcher/estimate/speed/collectives.json"
    return term("pipeline", what, "2 * t_send * (p - 1 + m * v)", source, exposed=exposed, t_send=one, p=p, m=m, v=v)
