"""A step of the pipeline: its slowest stage at work, and the time in which that stage idles for the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from launcher.estimate.speed.result import StageTime
from launcher.estimate.speed.terms import SpeedTerm, term
from launcher.spec import RunSpec

_BUBBLE = "arXiv:2104.04473, section 2.2; zero bubble arXiv:2401.10241, table 1"
_DUALPIPE = "arXiv:2412.19437, table 2"

_IDLE = {"1f1b": Fraction(1), "gpipe": Fraction(1), "interleaved": Fraction(1), "zero_bubble": Fraction(1, 3)}
"""Share of 1F1B's bubble that a schedule has: of ZB-H1 a third (arXiv:2401.10241, table 1)."""


def bubble(spec: RunSpec, stages: Sequence[StageTime], stage: StageTime) -> SpeedTerm:
    """The time in which a stage idles: one micro-batch's way through the other stages, there and back.

    ``(p - 1) (f + b)`` for equal stages (arXiv:2104.04473, section 2.2), a ``v``-th of it with ``v`` model chunks, for
    uneven ones the sum over the other stages. DualPipe: ``(p / 2 - 1) (f + b)`` of its two stages (arXiv:2412.19437).
    """
    others = sum(one.seconds for one in stages) - stage.seconds
    what = f"filling and draining the pipeline ({spec.parallel.schedule})"
    if spec.parallel.schedule == "dualpipe":
        return term("bubble", what, "max(t_others - t, 0) / 2", _DUALPIPE, t_others=others, t=stage.seconds)
    idle, chunks = float(_IDLE[spec.parallel.schedule]), spec.parallel.virtual_pipeline
    return term("bubble", what, "idle * t_others / v", _BUBBLE, idle=idle, t_others=others, v=chunks)


def idle(stages: Sequence[StageTime], schedule: str, chunks: int) -> float:
    """Seconds of :func:`bubble` at least, of stages with these passes under a schedule with so many model chunks.

    DualPipe's stages are pairs of them, so that nothing is counted for it.
    """
    seconds = [stage.seconds for stage in stages]
    return float(_IDLE.get(schedule, Fraction(0))) * (sum(seconds) - max(seconds)) / chunks


def messages(spec: RunSpec, stages: Sequence[StageTime], *, overlaps: bool) -> SpeedTerm:
    """Messages that the slowest stage waits for.

    Plain schedules send and receive on the critical path, twice a micro-batch; interleaved ones hide them where the
    engine overlaps, and have ``v`` times as many. Filling and draining wait for every boundary in any case.
    """
    one = max((stage.send_seconds for stage in stages), default=0.0)
    m, v, p = spec.gradient_accumulation, spec.parallel.virtual_pipeline, len(stages)
    exposed = 2 * one * (p - 1) if overlaps else None
    what, source = "messages between stages, there and back", "launcher/estimate/speed/collectives.json"
    return term("pipeline", what, "2 * t_send * (p - 1 + m * v)", source, exposed=exposed, t_send=one, p=p, m=m, v=v)
