"""A step of the pipeline: its slowest stage at work, and the time in which that stage idles for the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from launcher.spec import RunSpec
from launcher.speed.result import StageTime

_IDLE = {"1f1b": Fraction(1), "gpipe": Fraction(1), "interleaved": Fraction(1), "zero_bubble": Fraction(1, 3)}
"""Share of 1F1B's bubble that a schedule has: of ZB-H1 a third (arXiv:2401.10241, table 1)."""


def filling(spec: RunSpec, stages: Sequence[StageTime]) -> float:
    """Seconds in which the slowest stage idles: one micro-batch's way through the other stages, there and back.

    ``(p - 1) (f + b)`` for equal stages (arXiv:2104.04473, section 2.2), a ``v``-th of it with ``v`` model chunks, for
    uneven ones the sum over the other stages. DualPipe: ``(p / 2 - 1) (f + b)`` of its two stages (arXiv:2412.19437).
    """
    slowest = max(stage.forward_seconds + stage.backward_seconds for stage in stages)
    others = sum(stage.forward_seconds + stage.backward_seconds for stage in stages) - slowest
    if spec.parallel.schedule == "dualpipe":
        return max(0.0, others / 2 - slowest / 2)
    return others * float(_IDLE[spec.parallel.schedule]) / spec.parallel.virtual_pipeline


def messages(spec: RunSpec, stages: Sequence[StageTime], *, overlaps: bool) -> float:
    """Seconds of messages that the slowest stage waits for.

    Plain schedules send and receive on the critical path, twice a micro-batch; interleaved ones hide them where the
    engine overlaps, and have ``v`` times as many. Filling and draining wait for every boundary in any case.
    """
    one = max((stage.send_seconds for stage in stages), default=0.0)
    on_the_way = 2 * one * (len(stages) - 1)
    if overlaps:
        return on_the_way
    return on_the_way + 2 * one * spec.gradient_accumulation * spec.parallel.virtual_pipeline
