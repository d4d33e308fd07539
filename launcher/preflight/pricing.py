"""The predicted speed of a run, and of its ways out relative to it.

The speed of a run that does not fit is that of the same run on a card with enough memory; its ways out are compared
with that. There is one estimate for the run and one for each way out found, a handful at most.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from launcher.estimate.rank.model import Parts
from launcher.estimate.speed.calibration import Constant
from launcher.estimate.speed.result import OF_CPU, SpeedEstimate
from launcher.preflight.fixes import Fix, Search
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec

type PartsOf = Callable[[RunSpec], Parts]

type Measured = Callable[[RunSpec], Constant | None]
"""Gives the constant of the user's own measured runs for a run; None to use the shipped one."""


class PredictedSpeed(NamedTuple):
    """The predicted speed of a run, or why it is unknown."""

    speed: SpeedEstimate | None
    unknown: str | None


def predicted(spec: RunSpec, parts: PartsOf, verdict: Verdict, measured: Measured | None = None) -> PredictedSpeed:
    """The predicted speed of a valid run; ``verdict`` says how full its card is."""
    own = parts(spec)
    if spec.hardware.device == "cpu" and own["backend"].execution(spec) is not None:
        return PredictedSpeed(None, OF_CPU)
    from launcher.estimate.speed.estimate import estimate, unknown  # Late, because only a GPU's speed is modelled.

    used, capacity = verdict.used_bytes, verdict.capacity_bytes
    full = used / capacity if verdict.fits and used is not None and capacity else None
    found = estimate(spec, **own, crowding=full, measured=None if measured is None else measured(spec))
    return PredictedSpeed(found, unknown(spec, own["backend"]) if found is None else None)


def priced(
    search: Search, run: RunSpec, speed: SpeedEstimate | None, parts: PartsOf, measured: Measured | None = None
) -> Search:
    """Ways out with their speed, the fastest first among those that give up the same and need as many GPUs.

    Speeds that read the same keep their order, and unknown speeds come last. If ``speed``, that of the original
    ``run``, is unknown, the search is returned unchanged.
    """
    if speed is None:
        return search
    found = [_with_speed(fix, speed, parts, measured) for fix in search.found]
    found.sort(
        key=lambda fix: (fix.spec.gpus if fix.spec.gpus > run.gpus else 0, fix.group, -round(fix.speed or 0.0, 2))
    )
    nearest = None if search.nearest is None else _with_speed(search.nearest, speed, parts, measured)
    return Search(found=tuple(found), nearest=nearest)


def _with_speed(fix: Fix, before: SpeedEstimate, parts: PartsOf, measured: Measured | None) -> Fix:
    from launcher.estimate.speed.estimate import step_seconds  # Late, as above.

    own = None if measured is None else measured(fix.spec)
    seconds = step_seconds(fix.spec, **parts(fix.spec), measured=own)
    if seconds is None:
        return fix
    return replace(fix, speed=fix.spec.tokens_per_step / seconds / before.tokens_per_second)
