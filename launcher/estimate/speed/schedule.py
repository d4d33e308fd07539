"""The order of passes in a pipeline schedule, and a simulation of a step: when each pass starts and ends."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from launcher.estimate.rank.stages import FOLDED
from launcher.estimate.speed.result import StageTime
from launcher.spec import RunSpec

type Kind = Literal["forward", "backward", "weights"]
"""``backward`` is the whole backward pass; in zero bubble that of the inputs, which ``weights`` follows."""


class Pass(NamedTuple):
    """One pass of a micro-batch through one model chunk of a stage."""

    kind: Kind
    micro_batch: int
    chunk: int


class Timed(NamedTuple):
    """A pass with its time, in seconds from the step's start."""

    what: Pass  # The pass.
    start: float  # Its start.
    end: float  # Its end.
    sent: float  # When the message that it sends has arrived; its end where it sends none.


type Timeline = tuple[tuple[Timed, ...], ...]
"""The timed passes of each stage, in its order."""


def passes(spec: RunSpec) -> tuple[tuple[Pass, ...], ...] | None:
    """The passes of each stage in the order of its schedule; None for folded stages, whose order is torch's own.

    1F1B: stage ``r`` warms up with ``p - r - 1`` forward passes, then both alternate (arXiv:2104.04473, section 2.2).
    GPipe: all forward passes first (arXiv:1811.06965). Interleaved: chunks take turns in rounds, with a warm-up of
    ``2 (p - r - 1) + (v - 1) g`` (Megatron-core ``schedules.py``, torch's ``ScheduleInterleaved1F1B``). Zero bubble:
    stage ``r`` runs the weights' share of a backward pass ``r`` chunks later (ZB-H1, arXiv:2401.10241, section 2); with
    several chunks it warms up by ``(v - 1) g + p - r - 1`` (torch's ``ScheduleInterleavedZeroBubble``).
    """
    if spec.parallel.schedule in FOLDED:
        return None
    return tuple(_order(spec, stage) for stage in range(spec.parallel.pipeline))


def _order(spec: RunSpec, stage: int) -> tuple[Pass, ...]:
    """One stage's passes: warm-up forward passes, then both alternating, then the remaining backward passes."""
    forward, backward = _turns(spec, "forward"), _turns(spec, "backward")
    warm_up = min(len(forward), _warm_up(spec, stage))
    order, waiting = list(forward[:warm_up]), 0
    split = spec.parallel.schedule == "zero_bubble"
    for number, one in enumerate(backward):
        order += [*forward[warm_up + number : warm_up + number + 1], one]
        if split and number >= stage:
            order.append(backward[waiting]._replace(kind="weights"))
            waiting += 1
    if split:
        order += [one._replace(kind="weights") for one in backward[waiting:]]
    return tuple(order)


def _turns(spec: RunSpec, kind: Kind) -> list[Pass]:
    """All passes of a kind: a round of micro-batches through one chunk, then the same through the next."""
    chunks, size, count = spec.parallel.virtual_pipeline, spec.pipeline_round, spec.gradient_accumulation
    through = range(chunks) if kind == "forward" else range(chunks - 1, -1, -1)
    return [
        Pass(kind, micro_batch, chunk)
        for first in range(0, count, size)
        for chunk in through
        for micro_batch in range(first, min(first + size, count))
    ]


def _warm_up(spec: RunSpec, stage: int) -> int:
    """Forward passes of a stage before its first backward pass, without the one right before it."""
    parallel = spec.parallel
    left = parallel.pipeline - stage - 1
    if parallel.schedule == "gpipe":
        return spec.gradient_accumulation
    if parallel.schedule == "zero_bubble":
        return left + (parallel.virtual_pipeline - 1) * spec.pipeline_round
    if parallel.virtual_pipeline == 1:
        return left
    ahead = 1 if spec.backend.argument("overlap-moe-expert-parallel-comm") else 0
    return 2 * left + (parallel.virtual_pipeline - 1) * spec.pipeline_round + ahead


def simulated(spec: RunSpec, stages: Sequence[StageTime], *, overlaps: bool) -> Timeline | None:
    """The timed passes of a step (:func:`timeline`); None where the schedule's order of passes is not known."""
    orders = passes(spec)
    return None if orders is None else timeline(stages, orders, overlaps=overlaps)


def timeline(stages: Sequence[StageTime], orders: Sequence[Sequence[Pass]], *, overlaps: bool = False) -> Timeline:
    """The passes of each stage with their times.

    A forward pass waits for the same micro-batch's pass on the previous stage, and a later chunk of the first stage for
    the previous chunk on the last stage; backward passes go the other way. Chunks take equal shares of a stage's time.
    ``overlaps`` is true where a stage computes while it sends; otherwise it waits until the message has arrived.
    """
    last = (len(orders) - 1, max(one.chunk for one in orders[0]))
    split = any(one.kind == "weights" for one in orders[0])
    durations = [_durations(stage, last[1] + 1, split=split) for stage in stages]
    arrived: dict[tuple[int, Pass], float] = {}
    done: list[list[Timed]] = [[] for _ in orders]
    free = [0.0] * len(orders)
    ready = list(range(len(orders)))
    while ready:
        stage = ready.pop()
        for one in orders[stage][len(done[stage]) :]:
            needed = arrived.get((stage, one), 0.0 if _begins(one, stage, last) else None)
            if needed is None:
                break  # Its input has not arrived; the stage that sends it makes this one ready again.
            start = max(free[stage], needed)
            end = start + durations[stage][one.kind]
            to = _receiver(one, stage, last)
            sent = end if to is None else end + stages[stage].send_seconds
            free[stage] = end if overlaps else sent
            done[stage].append(Timed(one, start, end, sent))
            if to is not None:
                arrived[to] = sent
                ready.append(to[0])
    return tuple(map(tuple, done))


def makespan(times: Timeline) -> float:
    """Seconds from the start of the first pass to the end of the last one."""
    return max(one.end for row in times for one in row)


def _durations(stage: StageTime, chunks: int, *, split: bool) -> dict[Kind, float]:
    backward = stage.backward_seconds / (2 if split else 1) / chunks
    return {"forward": stage.forward_seconds / chunks, "backward": backward, "weights": backward}


def _begins(one: Pass, stage: int, last: tuple[int, int]) -> bool:
    """True for a pass that waits for no other stage: forward of the model's first chunk, backward of its last one."""
    place = (stage, one.chunk)
    return one.kind == "weights" or place == ((0, 0) if one.kind == "forward" else last)


def _receiver(one: Pass, stage: int, last: tuple[int, int]) -> tuple[int, Pass] | None:
    """The stage and its pass that wait for a pass's output; None at the ends of the model."""
    place = (stage, one.chunk)
    if one.kind == "weights" or place == (last if one.kind == "forward" else (0, 0)):
        return None
    if one.kind == "forward":
        return (stage + 1, one) if stage < last[0] else (0, one._replace(chunk=one.chunk + 1))
    return (stage - 1, one) if stage > 0 else (last[0], one._replace(chunk=one.chunk - 1))
