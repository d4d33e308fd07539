"""The time of a step, put together: every stage's passes, the schedule, the traffic of the states, the optimizer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol

from launcher.rank import engine as engines
from launcher.rank import execution as executions
from launcher.rank.counts import kinds_of, padded
from launcher.rank.engine import EngineTraits
from launcher.rank.execution import Execution
from launcher.rank.family import Family
from launcher.rank.formats import Dtypes
from launcher.rank.model import RankModel, rank_model
from launcher.rank.view import Strategy, views
from launcher.spec import RunSpec
from launcher.speed import attention, collectives, ends, experts, gemm, offload, pipeline, states
from launcher.speed.block import BlockKey, BlockPasses, block
from launcher.speed.calibration import UNCALIBRATED, constant
from launcher.speed.card import Card, card_of, lacking
from launcher.speed.network import Network, network_of
from launcher.speed.passes import NOTHING, Pass
from launcher.speed.result import Constant, SpeedEstimate, StageTime
from launcher.speed.shape import Shape, shape_of
from launcher.speed.terms import SpeedTerm, StepPart, term
from launcher.speed.work import model_flops

_AUTOGRAD = 2
"""Kernels that autograd's engine starts in the time in which Python starts one."""


CROWDED = 0.88
"""Share of a card's memory from which on the allocator may have to free what it keeps and ask again.

Of nanotron's runs on cards of 80 GB (the Ultra-Scale Playbook) those that took 69 GiB or more had a tenth to a third of
the speed of the others; how often the allocator asks again nobody can say beforehand.
"""

RETRYING = 0.1
"""The speed of such runs, of what the same run has with room to spare."""


class Backend(Protocol):
    """The questions of the model of speed to a backend."""

    @abstractmethod
    def dtypes(self, spec: RunSpec) -> Dtypes:
        """Its meaning of ``precision=``, format by format."""
        ...

    @abstractmethod
    def engine(self, spec: RunSpec) -> EngineTraits:
        """The implementation that runs."""
        ...

    def execution(self, spec: RunSpec) -> Execution | None:
        """The way in which it executes a step; None where nothing is known of that, and so of its speed."""
        return None


class Stage(NamedTuple):
    """One rank of a pipeline stage, and one micro-batch's passes on it."""

    rank: RankModel
    forward: Pass
    backward: Pass
    again: Pass
    time: StageTime


def unknown(spec: RunSpec, backend: Backend) -> str | None:
    """The reason why the speed of a run cannot be said; None where it can."""
    return _unknown(spec, backend.execution(spec), card_of(spec.hardware), network_of(spec))


def _unknown(spec: RunSpec, execution: Execution | None, card: Card | None, network: Network | None) -> str | None:
    if execution is None:
        return f"nothing is known of how {spec.backend.name} executes a step"
    if spec.hardware.device != "cuda":
        return "the speed of a CPU is not modelled"
    if spec.judges_no_model:
        return "what the script trains is not known"
    if card is None:
        return f"figures of {spec.hardware.title} are not known: {', '.join(lacking(spec.hardware))}"
    if network is None:
        return "the links between its GPUs are not known (hardware.link_bandwidth, cluster.network_bandwidth)"
    return offload.unknown(spec)


def estimate(
    spec: RunSpec,
    *,
    family: Family,
    strategies: Iterable[Strategy],
    backend: Backend,
    crowding: float | None = None,
    calibrated: bool = True,
    measured: Constant | None = None,
) -> SpeedEstimate | None:
    """Predict the time of a step.

    Args:
        spec: The run; its degrees divide what they must.
        family: The module of ``launcher.families`` that ``model.family`` names.
        strategies: All modules of ``launcher.strategies``.
        backend: The backend of the run.
        crowding: The memory that the worst rank needs, as a share of what it has; None is unknown.
        calibrated: True to multiply with what was measured of the framework on the GPU.
        measured: The constant of the user's own measured runs, in place of the shipped one.

    Returns:
        The estimate; None where :func:`unknown` says why there is none.
    """
    card, network, execution = card_of(spec.hardware), network_of(spec), backend.execution(spec)
    reason = _unknown(spec, execution, card, network)
    if card is None or network is None or execution is None or reason is not None:
        return None
    execution, engine = executions.kept(execution), engines.kept(backend.engine(spec))
    dtypes = backend.dtypes(spec)
    ranks = [rank_model(spec, view, family, dtypes, engine) for view in views(spec, strategies)]
    stages = [_stage(rank, family, execution, card, network) for rank in ranks]
    terms = list(_terms(spec, stages, execution, card, network))
    terms.append(states.waiting(spec.gpus, sum(one.exposed_seconds for one in terms)))
    raw = sum(one.exposed_seconds for one in terms)
    factor = measured or UNCALIBRATED
    if calibrated and measured is None:
        factor = constant(execution.framework, card.name, execution.related, experts=spec.model.num_experts > 0)
    crowded = crowding is not None and crowding >= CROWDED
    scaled = tuple(one.times(1 / factor.value) for one in terms)
    needed = spec.global_batch_size * model_flops(family, spec.model, spec.adapter, spec.sequence_length)
    bubble = sum(one.exposed_seconds for one in terms if one.part == "bubble")
    return SpeedEstimate(
        step_seconds=raw / factor.value,
        tokens=spec.global_batch_size * spec.sequence_length,
        gpus=spec.gpus,
        model_flops=needed,
        hardware_flops=max(needed, _computed(spec, stages)),
        peak_flops=card.peak(dtypes.compute),
        bubble=bubble / raw,
        terms=scaled,
        stages=tuple(stage.time.times(1 / factor.value) for stage in stages),
        constant=replace(factor, low=min(factor.low, RETRYING)) if crowded else factor,
        crowded=crowded,
    )


def _stage(rank: RankModel, family: Family, execution: Execution, card: Card, network: Network) -> Stage:
    """Sum the blocks and ends of one stage."""
    spec = rank.spec
    shape = shape_of(rank, execution, card, network)
    forward = backward = again = NOTHING
    for _, layer, count in kinds_of(family, spec.model, rank.view.layers, first_apart=spec.adapter.name != "none"):
        ahead, behind, repeated = block(BlockKey(family, spec.model, spec.adapter, layer), shape, spec.checkpointing)
        forward, backward = forward.plus(ahead.times(count)), backward.plus(behind.times(count))
        again = again.plus(repeated.times(_recomputed(rank, count)))
    for ahead, behind, repeated in _ends(rank, shape):
        forward, backward, again = forward.plus(ahead), backward.plus(behind), again.plus(repeated)
    launch = 0.0 if execution.graphs else execution.launch_seconds
    parallel = spec.parallel
    staged = (
        execution.staged_seconds * parallel.tensor * rank.layers if parallel.pipeline > 1 < parallel.tensor else 0.0
    )
    # Three passes, or two without recomputation, share what the host does beside them.
    share = staged / (3 if again.launches else 2)
    time = StageTime(
        stage=rank.view.stage,
        forward_seconds=forward.seconds(launch, share),
        backward_seconds=backward.seconds(launch / _AUTOGRAD, share)
        + again.seconds(launch, share if again.launches else 0),
        send_seconds=_send(rank, shape) if parallel.pipeline > 1 else 0.0,
    )
    return Stage(rank, forward, backward, again, time)


def _recomputed(rank: RankModel, count: int) -> float:
    """Blocks of a kind that are checkpointed: all, or as many of a stage as ``checkpointing.layers`` says."""
    checkpointing = rank.spec.checkpointing
    if checkpointing.method != "block" or checkpointing.layers is None:
        return count
    return count * min(1.0, checkpointing.layers / max(1, rank.layers))


def _ends(rank: RankModel, shape: Shape) -> Iterator[BlockPasses]:
    model, engine = rank.spec.model, rank.engine
    trained = rank.spec.adapter.name == "none"
    if rank.view.embedding:
        yield ends.embedding(model, shape)
    if rank.view.head:
        vocabulary = padded(model.vocab_size, engine.vocabulary_multiple)
        yield ends.head(
            model,
            vocabulary,
            shape,
            trained=trained,
            split=not (engine.whole_embedding and model.tie_word_embeddings),
            parallel_loss=engine.vocabulary_parallel,
            chunked=rank.spec.train.loss == "chunked",
        )


def _send(rank: RankModel, shape: Shape) -> float:
    """One micro-batch's hidden states to the next stage, and the host's time for the message."""
    spec = rank.spec
    size = shape.residual_tokens * spec.model.hidden_size * shape.residual_size
    stride = spec.gpus // spec.parallel.pipeline
    sent = collectives.seconds("send", size, shape.group(2, stride), shape.network)
    return sent + shape.execution.message_seconds


def _terms(
    spec: RunSpec, stages: list[Stage], execution: Execution, card: Card, network: Network
) -> Iterator[SpeedTerm]:
    """The parts of a step on its slowest stage."""
    times = [stage.time for stage in stages]
    slowest = max(stages, key=lambda stage: stage.time.seconds)
    m = spec.gradient_accumulation
    yield from _passes(slowest, m, card, execution)
    if len(stages) > 1:
        yield pipeline.bubble(spec, times)
        yield pipeline.messages(spec, times, overlaps=execution.pipeline_overlap)
    compute = states.Compute(slowest.time.forward_seconds, slowest.time.backward_seconds)
    yield from states.accumulation(slowest.rank, execution, card, m)
    yield from states.data_parallel(slowest.rank, execution, network, compute, m)
    if not offload.updates_on_host(slowest.rank):
        yield from states.optimizer(slowest.rank, execution, card)
    yield from offload.offload(slowest.rank, execution, card, compute, m)
    yield from offload.saved(slowest.rank, card)


def _passes(stage: Stage, m: int, card: Card, execution: Execution) -> Iterator[SpeedTerm]:
    """The micro-batches of a step on one stage, by what they go to."""
    both, again = stage.forward.plus(stage.backward), stage.again
    products, pairs, passes = gemm.source(card), attention.source(card), "launcher/speed/passes.py"
    words = f"products of both passes{experts.words(stage.rank.spec, execution)}"
    yield from _at_rate("matrix_products", words, products, m, both.product_flops, both.products)
    yield from _at_rate("attention", "attention of both passes", pairs, m, both.attention_flops, both.attention)
    yield from _at_rate("memory_bound", "norms, residuals, activations", passes, m, both.moved, both.memory)
    yield term("loss", "cross entropy", "m * t_loss", "launcher/speed/ends.py", m=m, t_loss=both.loss)
    yield term("recompute", "computed again", "m * t_again", "launcher/speed/block.py", m=m, t_again=again.compute)
    for part in ("tensor", "context", "expert"):
        seconds = getattr(both, part) + getattr(again, part)
        size = getattr(both, f"{part}_bytes") + getattr(again, f"{part}_bytes")
        if seconds or size:
            yield term(
                part, "collectives of both passes", "m * t", "launcher/speed/collectives.json",
                moved=m * size, group=f"{part} parallel", m=m, t=seconds,
            )  # fmt: skip
    gpu = both.gpu + again.gpu
    waited = max(0.0, stage.time.seconds - gpu)
    yield term("host", "the host starts kernels", "m * t_host", "launcher/speed/block.py", m=m, t_host=waited)


def _at_rate(part: StepPart, what: str, source: str, m: int, work: float, seconds: float) -> Iterator[SpeedTerm]:
    """A part by its work, in FLOPs or bytes of a micro-batch, and the rate at which the tables have it done."""
    if seconds:
        yield term(part, what, "m * work / rate", source, m=m, work=work, rate=work / seconds)


def _computed(spec: RunSpec, stages: list[Stage]) -> float:
    """FLOPs of a step that are computed; those of a fused kernel's own repetition left out (``0.8 x 2.5 = 2``)."""
    ranks = spec.gpus / spec.parallel.pipeline * spec.gradient_accumulation
    ahead = sum(stage.forward.product_flops + stage.forward.attention_flops for stage in stages)
    back = sum(stage.backward.product_flops + 0.8 * stage.backward.attention_flops for stage in stages)
    again = sum(stage.again.product_flops + stage.again.attention_flops for stage in stages)
    return ranks * (ahead + back + again)
