"""Warnings about a Slurm job's time limit against the predicted speed: a run, or a single step, that takes longer.

A limit that is over is no failure: the job is told ``cluster.save_margin_s`` before it, saves after its step, and goes
back into the queue where ``cluster.requeues`` lets it. So these are warnings, and only where the fastest speed of the
error band would not do. Evaluations and starts are not counted, which would take time beside the steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from launcher.base.errors import ConfigError
from launcher.base.units import duration, gib, rounded
from launcher.estimate.speed.result import SpeedEstimate
from launcher.preflight.saving import Saves
from launcher.spec import RunSpec

_ROUND_MIN = 10  # Minutes to which a limit that is proposed is rounded up.


def remarks(spec: RunSpec, speed: SpeedEstimate | None, saves: Saves) -> Iterator[ConfigError]:
    """Warnings of a valid run of a queue; none of a script of the user's own."""
    if spec.cluster.kind != "slurm" or spec.script is not None:
        return
    ends = None
    if speed is not None:
        ends = tuple(speed.step_seconds * speed.tokens_per_second_per_gpu / end for end in (speed.high, speed.low))
    yield from _margin(spec, ends, saves)
    if ends is not None and spec.cluster.time_limit_min is not None:
        yield from _limit(spec, spec.cluster.time_limit_min, *ends)


def _margin(spec: RunSpec, ends: tuple[float, ...] | None, saves: Saves) -> Iterator[ConfigError]:
    """A margin in which the job cannot end its step and write the checkpoint whole, also one in the background."""
    limit, margin, (fastest, slowest) = spec.cluster.time_limit_min, spec.cluster.save_margin_s, ends or (0.0, 0.0)
    save = saves.least_seconds if saves.seconds is None else saves.seconds
    if fastest + save <= margin:
        return
    parts = []
    if ends is not None:
        parts.append(f"ends the step that it is in first, which takes {_between(fastest, slowest)} by the estimate")
    if fastest <= margin or saves.seconds is not None:
        parts.append(_written(spec, saves))
    rule = f"the job is told to save {margin} s before its time limit, and {', and '.join(parts)}"
    enough = 2 * math.ceil(slowest + save)
    longer = "" if limit is None or enough < 60 * limit else f" cluster.time_limit_min={math.ceil(enough / 30)}"
    yield ConfigError("cluster.save_margin_s", margin, rule, [f"cluster.save_margin_s={enough}{longer}"])


def _written(spec: RunSpec, saves: Saves) -> str:
    """The checkpoint and the time that it takes, or the least that any storage known to us would take."""
    size = gib(saves.disk.checkpoint_bytes)
    if saves.seconds is not None and saves.bandwidth is not None:
        rate = rounded(saves.bandwidth / 1e9)
        return f"writes a checkpoint of {size}, which takes {duration(saves.seconds)} at {rate} GB/s ({saves.source})"
    nodes = f"{spec.cluster.nodes} node{'' if spec.cluster.nodes == 1 else 's'}"
    return (
        f"writes a checkpoint of {size}, which takes {duration(saves.least_seconds)} even with the fastest"
        f" storage that NVIDIA recommends for {nodes} (cluster.storage_bandwidth says how fast this one is)"
    )


def _limit(spec: RunSpec, limit_min: int, fastest: float, slowest: float) -> Iterator[ConfigError]:
    limit, margin = 60 * limit_min, spec.cluster.save_margin_s
    if spec.steps * fastest <= limit - margin:
        return
    needed = math.ceil((spec.steps * slowest + margin) / 60 / _ROUND_MIN) * _ROUND_MIN
    least = math.ceil(spec.steps * fastest / max(1, limit - margin))
    rule = (
        f"{spec.steps:,} steps take {_between(spec.steps * fastest, spec.steps * slowest)} by the estimate:"
        f" {_afterwards(spec.cluster.requeues, least)}"
    )
    yield ConfigError("cluster.time_limit_min", limit_min, rule, [f"cluster.time_limit_min={needed}"])


def _between(low: float, high: float) -> str:
    return " to ".join(dict.fromkeys((duration(low), duration(high))))


def _afterwards(requeues: int, least: int) -> str:
    """The run's way on from the limit; it needs at least so many jobs."""
    if requeues:
        times = "once" if least == 2 else f"{least - 1} times"
        return f"the job saves, goes back into the queue and on from there, at least {times}"
    return "the job saves and ends, as cluster.requeues=0; launch resume goes on"
