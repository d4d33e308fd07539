"""Sentences of the pre-flight: whether the run fits and what is full, the reason, and the speed.

The verdict names the fullest place with what it needs, what it has and the error band; a place that is not the device
comes first where it is the only one that is too small. The reason names the moment, the largest pile, and what is left
or lacking. The speed comes with its error band, the share of the card's peak, and the shares of a step's time that
nothing hides, so that they add up to the step; then follow time, GPU-hours and money of the whole run.
"""

from __future__ import annotations

from collections.abc import Iterator

from launcher import backends
from launcher.base import units
from launcher.base.units import GIB, MIB, count, duration, gib, rounded
from launcher.estimate.memory.result import MemoryEstimate
from launcher.estimate.speed.result import SpeedEstimate, name_of
from launcher.estimate.speed.terms import COMMUNICATION, PARTS
from launcher.preflight.assess import Assessment
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec

_WORDS = {"fits": "FITS", "tight": "TIGHT", "does_not_fit": "DOES NOT FIT"}

_UNITS = {GIB: "GiB", MIB: "MiB"}

_PLACES = {"host": "a node's host memory, {}", "disk": "the disk, {} for checkpoints"}

_SHOWN = 0.005
"""Share of a step below which a part is not named: it would be 0%."""

_CROWDED = (
    "the card is nearly full: where its allocator has to free what it keeps and ask again, runs were measured at a"
    " third to a tenth of their speed"
)


def answer(spec: RunSpec, verdict: Verdict, estimate: MemoryEstimate) -> str:
    """The verdict on a valid run, with the figures of the place that decides."""
    word, device = _WORDS[verdict.name], _on_device(spec, verdict, estimate)
    if verdict.capacity_bytes is None and verdict.name == "fits":
        return f"{word} as far as is known: {device}; how much it has is unknown, so nothing is refused"
    if spec.rank_memory_bytes is None and _lacks(verdict, "device"):
        device += "; how much it has is unknown, and none has more"
    others = [short for short in verdict.shortages if short.place != "device"]
    elsewhere = "; ".join(_PLACES[short.place].format(_of(short.used_bytes, short.capacity_bytes)) for short in others)
    if not elsewhere:
        return f"{word}: {device}"
    is_full = _lacks(verdict, "device")
    return f"{word}: {device}; {elsewhere}" if is_full else f"{word}: {elsewhere}; memory suffices, {device}"


def not_known(spec: RunSpec) -> str:
    """The verdict on a script beside which no model is named."""
    return f"UNKNOWN: what {spec.script} builds is not known, so nothing is refused"


def reason(spec: RunSpec, verdict: Verdict, estimate: MemoryEstimate) -> str:
    """The moment and the largest pile, what is left or lacking, and the checkpoints where the disk lacks."""
    sentences: list[str] = []
    if verdict.name == "tight":
        sentences.append("The capacity lies within the estimate's error, so it may run out of memory.")
    if _lacks(verdict, "disk"):
        sentences.append(_checkpoints(spec, estimate))
    if verdict.fits or _lacks(verdict, "device"):
        sentences.append(_peak(spec, verdict, estimate))
    return " ".join(sentences)


def _lacks(verdict: Verdict, place: str) -> bool:
    return any(short.place == place for short in verdict.shortages)


def _peak(spec: RunSpec, verdict: Verdict, estimate: MemoryEstimate) -> str:
    largest, peak = estimate.largest_pile, estimate.peak
    where = f"in the {peak.phase.replace('_', ' ')} phase"
    where += f" of pipeline stage {peak.stage}" if spec.parallel.pipeline > 1 else ""
    text = f"The largest part is {largest.pile.replace('_', ' ')}, {gib(largest.bytes)}, at the peak {where}"
    if (room := verdict.headroom_bytes) is not None:
        text += f"; {gib(room)} are left" if room >= 0 else f"; {gib(-room)} are lacking"
    return f"{text}."


def _on_device(spec: RunSpec, verdict: Verdict, estimate: MemoryEstimate) -> str:
    used, outside, peak = verdict.used_bytes or 0, estimate.outside_bytes, estimate.peak
    low, high = (f"{(end + outside) / _unit(used):.1f}" for end in (peak.low_bytes, peak.high_bytes))
    noun = "GPU" if spec.hardware.device == "cuda" else "rank"
    place = f"fullest {noun}" if spec.gpus > 1 else noun
    return f"{_of(used, verdict.capacity_bytes)} on the {place} ({low} to {high})"


def _checkpoints(spec: RunSpec, estimate: MemoryEstimate) -> str:
    """The checkpoints that are on the disk at once."""
    number = estimate.disk.kept_bytes // max(1, estimate.disk.checkpoint_bytes)
    if number == 1:
        return "One checkpoint is too much for the disk."
    size = gib(estimate.disk.checkpoint_bytes)
    return f"{number} checkpoints of {size} are on the disk at once: save.keep={spec.save.keep} and the one in writing."


def _of(used: int, capacity: int | None) -> str:
    """``37.9 of 79.7 GiB``, with each size's own unit where they differ."""
    unit = _unit(used)
    if capacity is None:
        return f"{used / unit:.1f} {_UNITS[unit]}"
    whole = _unit(capacity)
    own = "" if whole == unit else f" {_UNITS[unit]}"
    return f"{used / unit:.1f}{own} of {capacity / whole:.1f} {_UNITS[whole]}"


def _unit(size: int) -> int:
    return MIB if size < GIB // 10 else GIB


def speed(assessment: Assessment) -> list[str]:
    """The speed of a valid run as sentences; none where the run is on the CPU, whose text says so elsewhere."""
    spec, found = assessment.spec, assessment.speed
    if found is None:
        cpu = spec.hardware.device == "cpu"
        return [] if cpu or assessment.speed_unknown is None else [f"speed unknown: {assessment.speed_unknown}"]
    fitted = "" if assessment.verdict.fits else "if it fitted: "
    crowded = [_CROWDED] if found.crowded else []
    return [f"{fitted}{_speed(spec, found)}: {', '.join(_shares(found))}", *crowded, *_length(spec, found)]


def _speed(spec: RunSpec, speed: SpeedEstimate) -> str:
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
    hours = speed.gpu_hours(spec)
    if hours is None:
        return
    steps, price = spec.steps, speed.price(spec)
    paid = "" if price is None else f", cost {rounded(price)} at {spec.cluster.price_per_gpu_hour:g} a GPU-hour"
    yield (
        f"{units.steps(steps)}, {count(steps * speed.tokens)} tokens: {duration(steps * speed.step_seconds)},"
        f" {rounded(hours)} GPU-hours{paid}"
    )
