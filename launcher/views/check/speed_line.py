"""The speed of a run in two sentences.

The first sentence is the speed with its error band, the share of the card's peak, and what a step's time goes to; the
second is time, GPU-hours and money for the steps of the run. Shares are those of the time that nothing hides, so that
they add up to the step.
"""

from __future__ import annotations

from collections.abc import Iterator

from launcher import backends
from launcher.base import units
from launcher.base.units import count, duration, rounded
from launcher.estimate.speed.result import SpeedEstimate
from launcher.estimate.speed.summary import gpu_hours, name_of, price_of
from launcher.estimate.speed.terms import COMMUNICATION, PARTS
from launcher.preflight.assess import Assessment
from launcher.spec import RunSpec

_SHOWN = 0.005
"""Share of a step below which a part is not named: it would be 0%."""

_CROWDED = (
    "the card is nearly full: where its allocator has to free what it keeps and ask again, runs were measured at a"
    " third to a tenth of their speed"
)


def sentences(assessment: Assessment) -> list[str]:
    """The speed of a valid run as sentences; none where the run is on the CPU, as is said elsewhere."""
    spec, speed = assessment.spec, assessment.speed
    if speed is None:
        cpu = spec.hardware.device == "cpu"
        return [] if cpu or assessment.speed_unknown is None else [f"speed unknown: {assessment.speed_unknown}"]
    fitted = "" if assessment.verdict.fits else "if it fitted: "
    crowded = [_CROWDED] if speed.crowded else []
    return [f"{fitted}{speed_of(spec, speed)}: {', '.join(_shares(speed))}", *crowded, *_length(spec, speed)]


def speed_of(spec: RunSpec, speed: SpeedEstimate) -> str:
    """Tokens a second with the band and whose runs it is from, the share of the peak, and seconds of a step."""
    constant = speed.constant
    here = f", from {constant.rows} runs on this cluster" if constant.here else ""
    band = f" ({rounded(speed.low)} to {rounded(speed.high)}{here})" if constant.rows else ""
    peak = f"{speed.mfu:.0%} of the card's {backends.of(spec).dtypes(spec).compute} peak"
    return (
        f"about {rounded(speed.tokens_per_second_per_gpu)} tokens/s a GPU{band}, {peak};"
        f" {rounded(speed.step_seconds, 2)} s a step"
    )


def _shares(speed: SpeedEstimate) -> Iterator[str]:
    """Parts with their shares of a step, traffic in one with its kinds in brackets."""
    shares = {part: speed.exposed(part) / speed.step_seconds for part in PARTS}
    traffic = {part: shares[part] for part in COMMUNICATION if shares[part] >= _SHOWN}
    for part in PARTS:
        if part == COMMUNICATION[0] and traffic:
            kinds = ", ".join(f"{name_of(kind)} {share:.0%}" for kind, share in traffic.items())
            kinds = name_of(next(iter(traffic))) if len(traffic) == 1 else kinds
            yield f"exposed communication {sum(traffic.values()):.0%} ({kinds})"
        elif part not in COMMUNICATION and shares[part] >= _SHOWN:
            yield f"{name_of(part)} {shares[part]:.0%}"


def _length(spec: RunSpec, speed: SpeedEstimate) -> Iterator[str]:
    """Time, GPU-hours and money of the whole run; none of a script of the user's own, which decides when it ends."""
    hours = gpu_hours(spec, speed)
    if hours is None:
        return
    steps, price = spec.steps, price_of(spec, speed)
    paid = "" if price is None else f", cost {rounded(price)} at {spec.cluster.price_per_gpu_hour:g} a GPU-hour"
    yield (
        f"{units.steps(steps)}, {count(steps * speed.tokens)} tokens: {duration(steps * speed.step_seconds)},"
        f" {rounded(hours)} GPU-hours{paid}"
    )
