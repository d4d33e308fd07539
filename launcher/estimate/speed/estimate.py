"""The time of a step: every stage's passes, the schedule, the communication of model states, and the optimizer."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Unpack

from launcher.estimate.rank.engine import EngineTraits, Execution, kept, of_passes
from launcher.estimate.rank.formats import Dtypes
from launcher.estimate.rank.model import Backend, Parts, RankModel, rank_model
from launcher.estimate.rank.stages import FOLDED, SPLIT, cut_of, rank_layers
from launcher.estimate.rank.view import RankView, view_of
from launcher.estimate.speed import attention, experts, gemm, matrices, offload, states
from launcher.estimate.speed.calibration import Constant, constant
from launcher.estimate.speed.card import Card, card_of, lacking
from launcher.estimate.speed.network import Network, network_of
from launcher.estimate.speed.products import model_flops
from launcher.estimate.speed.result import OF_CPU, SpeedEstimate, StageTime
from launcher.estimate.speed.shape import shape_of
from launcher.estimate.speed.stage import Stage, Stages, bubble, idle_seconds, line_of, messages
from launcher.estimate.speed.terms import SpeedTerm, StepPart, term
from launcher.spec import RunSpec
from launcher.spec.edit import changed_at

CROWDED = 0.88
"""Share of a card's memory from which the allocator may have to release its cache and allocate again: nanotron's runs
of 69 GiB or more of 80 GB (the Ultra-Scale Playbook) had a tenth to a third of the speed of the others."""


type Chunking = tuple[str, int]
"""A pipeline schedule, and its model chunks per stage."""


class Timed(NamedTuple):
    """The timed stages of a run, and what their times depend on."""

    execution: Execution  # How the engine executes a step.
    engine: EngineTraits  # The implementation of the model.
    dtypes: Dtypes  # The number formats.
    card: Card  # The GPU.
    network: Network  # Its links.
    view: RankView  # One rank of the first stage.
    line: Stages  # The stages of the pipeline.


def unknown(spec: RunSpec, backend: Backend) -> str | None:
    """The reason why the speed of a run cannot be predicted; None where it can."""
    return _unknown(spec, backend.execution(spec))


def _unknown(spec: RunSpec, execution: Execution | None) -> str | None:
    if execution is None:
        if spec.task.name == "grpo":
            return "the time to generate answers is not known"
        return f"how {spec.backend.name} executes a step is not known"
    if spec.hardware.device != "cuda":
        return OF_CPU
    if spec.judges_no_model:
        return "what the script trains is not known"
    if card_of(spec.hardware) is None:
        return f"{spec.hardware.title} has unknown figures: {', '.join(lacking(spec.hardware))}"
    if network_of(spec) is None:
        return "the bandwidth between its GPUs is not known (hardware.link_bandwidth, cluster.network_bandwidth)"
    return offload.unknown(spec)


def estimate(
    spec: RunSpec, *, crowding: float | None = None, measured: Constant | None = None, **parts: Unpack[Parts]
) -> SpeedEstimate | None:
    """Predict the time of a step; None where :func:`unknown` says why there is none.

    ``crowding`` is the memory that the worst rank needs as a share of its capacity; None if unknown. ``measured`` is
    the constant of the user's own runs; None takes the shipped one for the framework and GPU.
    """
    timed = _timed(spec, parts)
    if timed is None:
        return None
    found, factor = _step(spec, parts, timed), _factor(spec, timed, measured)
    raw = _exposed(found)
    needed = (
        spec.global_batch_size
        * spec.task.sequences
        * model_flops(parts["family"], spec.model, spec.adapter, spec.sequence_length)
    )
    idle = _exposed(one for one in found if one.part == "bubble")
    return SpeedEstimate(
        step_seconds=raw / factor.value,
        tokens=spec.tokens_per_step,
        gpus=spec.gpus,
        model_flops=needed,
        hardware_flops=max(needed, _computed(spec, timed.line.stages)),
        peak_flops=timed.card.peak(timed.dtypes.compute),
        bubble=idle / raw,
        terms=tuple(one.times(1 / factor.value) for one in found),
        stages=tuple(
            replace(one.time, stage=number).times(1 / factor.value) for number, one in enumerate(timed.line.stages)
        ),
        constant=factor,
        crowded=crowding is not None and crowding >= CROWDED,
    )


def step_seconds(spec: RunSpec, *, measured: Constant | None = None, **parts: Unpack[Parts]) -> float | None:
    """The seconds of a step alone, faster than :func:`estimate`; the arguments are the same."""
    timed = _timed(spec, parts)
    if timed is None:
        return None
    return _exposed(_step(spec, parts, timed)) / _factor(spec, timed, measured).value


def least_seconds(
    spec: RunSpec, chunkings: Iterable[Chunking], *, measured: Constant | None = None, **parts: Unpack[Parts]
) -> float | None:
    """A lower bound on the seconds of a step: the slowest stage's passes, and the smallest bubble of some schedules.

    ``chunkings`` are the schedules, each with its model chunks per stage; the other arguments as for :func:`estimate`.
    """
    timed = _timed(spec, parts, hooked=False)
    if timed is None:
        return None
    factor, line = _factor(spec, timed, measured), timed.line
    times = [stage.time for stage in line.stages]
    idle = min(idle_seconds(times, schedule, chunks) for schedule, chunks in chunkings)
    return (spec.gradient_accumulation * line.slowest.time.seconds + idle) / factor.value


def least_of_schedules(
    spec: RunSpec, chunkings: Sequence[Chunking], *, measured: Constant | None = None, **parts: Unpack[Parts]
) -> list[float] | None:
    """Lower bounds on the seconds of a step, one per schedule; the arguments are those of :func:`least_seconds`.

    To the passes and the bubble they add the least time of the model states, which depends on the number of model
    chunks (more hide more) and on whether stages are folded or backward passes split. None where speed is unknown.
    """
    kinds: dict[tuple[bool, bool], tuple[Sequence[StageTime], float, float]] = {}
    for schedule, chunks in sorted(chunkings, key=lambda each: -each[1]):
        kind = _kind(schedule)
        if kind not in kinds:
            widest = changed_at(spec, {"parallel.schedule": schedule, "parallel.virtual_pipeline": chunks})
            timed = _timed(widest, parts, hooked=False)
            if timed is None:
                return None
            factor, slowest = _factor(spec, timed, measured), timed.line.slowest.time.seconds
            states_ = _of_states(
                _ranked(widest, parts, timed, timed.line.slowest.time.stage), timed, timed.line.slowest
            )
            seconds = spec.gradient_accumulation * slowest + _exposed(states_)
            kinds[kind] = [stage.time for stage in timed.line.stages], seconds, factor.value
    found = []
    for schedule, chunks in chunkings:
        times, seconds, value = kinds[_kind(schedule)]
        found.append((seconds + idle_seconds(times, schedule, chunks)) / value)
    return found


def _kind(schedule: str) -> tuple[bool, bool]:
    return schedule in FOLDED, schedule in SPLIT


def _timed(spec: RunSpec, parts: Parts, *, hooked: bool = True) -> Timed | None:
    """The timed stages; a bound leaves out hooks (``hooked``), which only one of the sharding stages waits for."""
    backend: Backend = parts["backend"]
    card, network, execution = card_of(spec.hardware), network_of(spec), backend.execution(spec)
    if card is None or network is None or execution is None or _unknown(spec, execution) is not None:
        return None
    if not hooked and execution.hook_seconds:
        execution = replace(execution, hook_seconds=0.0)
    execution, engine, dtypes = kept(execution), kept(backend.engine(spec)), backend.dtypes(spec)
    view = view_of(spec, parts["strategies"], 0)
    shape = shape_of(spec, view, dtypes, engine, of_passes(execution), card, network)
    return Timed(execution, engine, dtypes, card, network, view, line_of(spec, parts["family"], engine, shape))


def _step(spec: RunSpec, parts: Parts, timed: Timed) -> list[SpeedTerm]:
    """The terms of a step on its slowest stage, before calibration."""
    terms = max(([*_terms(rank, timed, stage)] for stage, rank in _critical(spec, parts, timed)), key=_exposed)
    return [*terms, states.waiting(spec.gpus, _exposed(terms))]


def _exposed(terms: Iterable[SpeedTerm]) -> float:
    return sum(one.exposed_seconds for one in terms)


def _critical(spec: RunSpec, parts: Parts, timed: Timed) -> Iterator[tuple[Stage, RankModel]]:
    """The stages that may take longest: the one with the longest passes, and those that hold more parameters."""
    slowest = timed.line.slowest
    own = _ranked(spec, parts, timed, slowest.time.stage)
    yield slowest, own
    cut, uniform = cut_of(spec), spec.model.first_dense_layers == 0
    most = len(own.view.layers), sum(cut.ends(slowest.time.stage))
    for stage in {one.time.stage: one for one in timed.line.stages}.values():
        place = stage.time.stage
        if uniform and len(rank_layers(cut, place)) <= most[0] and sum(cut.ends(place)) <= most[1]:
            continue
        rank = _ranked(spec, parts, timed, place)
        if rank.elements.parameters > own.elements.parameters:
            yield stage, rank


def _ranked(spec: RunSpec, parts: Parts, timed: Timed, stage: int) -> RankModel:
    view = view_of(spec, parts["strategies"], stage) if stage else timed.view
    return rank_model(spec, view, parts["family"], timed.dtypes, timed.engine)


def _factor(spec: RunSpec, timed: Timed, measured: Constant | None) -> Constant:
    if measured is not None:
        return measured
    execution, experts_ = timed.execution, spec.model.num_experts > 0
    return constant(execution.framework, timed.card, execution.related, experts=experts_)


def _terms(rank: RankModel, timed: Timed, stage: Stage) -> Iterator[SpeedTerm]:
    execution, card = timed.execution, timed.card
    spec, m = rank.spec, rank.spec.gradient_accumulation
    yield from _passes(spec, stage, m, card, execution)
    if len(timed.line.stages) > 1:
        times = [one.time for one in timed.line.stages]
        yield bubble(spec, times, stage.time)
        yield messages(spec, times, overlaps=execution.pipeline_overlap)
    yield from _of_states(rank, timed, stage)
    yield from offload.activations(rank, card, stage.time, m)
    yield from offload.saved(rank, card)


def _of_states(rank: RankModel, timed: Timed, stage: Stage) -> Iterator[SpeedTerm]:
    """Gradient accumulation, the communication of the model states, and the optimizer."""
    execution, card, m, compute = timed.execution, timed.card, rank.spec.gradient_accumulation, stage.time
    yield from states.accumulation(rank, execution, card, m)
    yield from states.copies(rank, execution, card, compute, m)
    traffic = list(states.data_parallel(rank, execution, timed.network, stage.beside_network, m))
    yield from traffic
    if not offload.updates_on_host(rank):
        yield from states.optimizer(rank, execution, card)
        yield from matrices.step(rank, timed.network, card)
    yield from offload.offload(rank, execution, card, compute, m, sum(one.exposed_seconds for one in traffic))


def _passes(spec: RunSpec, stage: Stage, m: int, card: Card, execution: Execution) -> Iterator[SpeedTerm]:
    """The time of a step's micro-batches on one stage, split by cause."""
    both, again = stage.both, stage.again
    products, pairs, passes = (
        gemm.CONSTANTS.source(card),
        attention.CONSTANTS.source(card),
        "launcher/estimate/speed/passes.py",
    )
    block = "launcher/estimate/speed/block.py"
    words = f"products of both passes{experts.words(spec, execution)}"
    yield from _at_rate("matrix_products", words, products, m, both.product_flops, both.products)
    yield from _at_rate("attention", "attention of both passes", pairs, m, both.attention_flops, both.attention)
    yield from _at_rate("memory_bound", "norms, residuals, activations", passes, m, both.moved, both.memory)
    yield term("loss", "cross entropy", "m * t_loss", "launcher/estimate/speed/stage.py", m=m, t_loss=both.loss)
    if others := sum(spec.task.other_passes):
        what, t_ahead = "forward passes without gradients, for the reference", stage.time.forward_seconds
        yield term("reference", what, "n * m * t_ahead", "trl/trainer, dpo and kto", n=others, m=m, t_ahead=t_ahead)
    yield term("recompute", "forward computed again", "m * t_again", block, m=m, t_again=again.compute)
    for part in ("tensor", "context", "expert"):
        seconds = getattr(both, part) + getattr(again, part)
        size = getattr(both, f"{part}_bytes") + getattr(again, f"{part}_bytes")
        if seconds or size:
            yield term(
                part, "collectives of both passes", "m * t", "launcher/estimate/speed/collectives.json",
                moved=m * size, group=f"{part} parallel", m=m, t=seconds,
            )  # fmt: skip
    idle = max(0.0, stage.time.seconds - (both.gpu + again.gpu))
    yield term("host", "the GPU waits for kernel launches", "m * t_host", block, m=m, t_host=idle)


def _at_rate(part: StepPart, what: str, source: str, m: int, work: float, seconds: float) -> Iterator[SpeedTerm]:
    """A part by its work, FLOPs or bytes of a micro-batch, and the rate that the measured tables give for it."""
    if seconds:
        yield term(part, what, "m * work / rate", source, m=m, work=work, rate=work / seconds)


def _computed(spec: RunSpec, stages: Sequence[Stage]) -> float:
    """FLOPs computed in a step, without what a fused kernel itself recomputes (``0.8 x 2.5 = 2``)."""
    ranks = spec.gpus / spec.parallel.pipeline * spec.gradient_accumulation
    ahead = sum(one.forward.product_flops + one.forward.attention_flops for one in stages)
    back = sum(one.backward.product_flops + 0.8 * one.backward.attention_flops for one in stages)
    ahead *= 1 + sum(spec.task.other_passes)
    return ranks * (ahead + back + sum(one.again.product_flops + one.again.attention_flops for one in stages))
