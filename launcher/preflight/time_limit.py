"""Warnings about a Slurm job's time limit against the predicted speed: a run, or a single step, that takes longer.

A limit that is over is no failure: the job is told ``cluster.save_margin_s`` before it, saves after its step, and goes
back into the queue where ``cluster.requeues`` lets it. So these are warnings, and only where the fastest speed of the
error band would not do. Evaluations and starts are not counted, which would take time beside the steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from launcher.errors import ConfigError
from launcher.spec import RunSpec
from launcher.speed.result import SpeedEstimate
from launcher.text.units import duration

_ROUND_MIN = 10
"""Minutes to which a limit that is proposed is rounded up."""


def remarks(spec: RunSpec, speed: SpeedEstimate | None) -> Iterator[ConfigError]:
    """Warnings of a valid run; none where its speed or its limit is unknown, and of a script of the user's own."""
    cluster = spec.cluster
    if speed is None or cluster.time_limit_min is None or cluster.kind != "slurm" or spec.script is not None:
        return
    fastest, slowest = (speed.step_seconds * speed.tokens_per_second_per_gpu / end for end in (speed.high, speed.low))
    limit, margin = 60 * cluster.time_limit_min, cluster.save_margin_s
    if fastest > margin:
        rule = (
            f"the job is told to save {margin} s before its time limit, and ends the step that it is in first, which"
            f" takes {_between(fastest, slowest)} by the estimate"
        )
        way = f"cluster.save_margin_s={2 * math.ceil(slowest)}"
        yield ConfigError("cluster.save_margin_s", margin, rule, [way])
    if spec.steps * fastest > limit - margin:
        needed = math.ceil((spec.steps * slowest + margin) / 60 / _ROUND_MIN) * _ROUND_MIN
        least = math.ceil(spec.steps * fastest / max(1, limit - margin))
        rule = (
            f"{spec.steps:,} steps take {_between(spec.steps * fastest, spec.steps * slowest)} by the estimate:"
            f" {_afterwards(cluster.requeues, least)}"
        )
        yield ConfigError("cluster.time_limit_min", cluster.time_limit_min, rule, [f"cluster.time_limit_min={needed}"])


def _between(low: float, high: float) -> str:
    """Both ends of the band where they differ as they are said."""
    ends = list(dict.fromkeys((duration(low), duration(high))))
    return " to ".join(ends)


def _afterwards(requeues: int, least: int) -> str:
    """The run's way on from the limit; it needs at least so many jobs."""
    if requeues:
        times = "once" if least == 2 else f"{least - 1} times"
        return f"the job saves, goes back into the queue and on from there, at least {times}"
    return "the job saves and ends, as cluster.requeues=0; launch resume goes on"
