"""The answer of the pre-flight in two sentences: whether the run fits and what is full, and the reason.

The first names the fullest place with what it needs, what it has and the error band; a place that is not the device
comes first where it is the only one that is too small. The second names the moment, the largest pile, and what is left
or lacking.
"""

from __future__ import annotations

from launcher.base.units import GIB, MIB, gib
from launcher.estimate.memory.result import MemoryEstimate
from launcher.preflight.verdict import Shortage, Verdict
from launcher.spec import RunSpec

_WORDS = {"fits": "FITS", "tight": "TIGHT", "does_not_fit": "DOES NOT FIT"}


def answer(spec: RunSpec, verdict: Verdict, estimate: MemoryEstimate) -> str:
    """The verdict on a valid run, with the figures of the place that decides."""
    word, device = _WORDS[verdict.name], _on_device(spec, verdict, estimate)
    if verdict.capacity_bytes is None and verdict.name == "fits":
        return f"{word} as far as is known: {device}; how much it has is unknown, so nothing is refused"
    if spec.rank_memory_bytes is None and _lacks(verdict, "device"):
        device += "; how much it has is unknown, and none has more"
    elsewhere = "; ".join(_elsewhere(short) for short in verdict.shortages if short.place != "device")
    if not elsewhere:
        return f"{word}: {device}"
    return (
        f"{word}: {device}; {elsewhere}"
        if _lacks(verdict, "device")
        else f"{word}: {elsewhere}; memory suffices, {device}"
    )


def not_known(spec: RunSpec) -> str:
    """The verdict on a run of which it is not known what it builds."""
    return f"UNKNOWN: what {spec.script} builds is not known, so nothing is refused"


def reason(spec: RunSpec, verdict: Verdict, estimate: MemoryEstimate) -> str:
    """Why: the moment and the largest pile, what is left or lacking, and the checkpoints where the disk lacks."""
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
    low, high = (_figure(end + outside, _unit(used)) for end in (peak.low_bytes, peak.high_bytes))
    noun = "GPU" if spec.hardware.device == "cuda" else "rank"
    place = f"fullest {noun}" if spec.gpus > 1 else noun
    return f"{_of(used, verdict.capacity_bytes)} on the {place} ({low} to {high})"


_PLACES = {"host": "a node's host memory, {}", "disk": "the disk, {} for checkpoints"}


def _elsewhere(short: Shortage) -> str:
    return _PLACES[short.place].format(_of(short.used_bytes, short.capacity_bytes))


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
        return f"{_figure(used, unit)} {_NAMES[unit]}"
    own = "" if _unit(capacity) == unit else f" {_NAMES[unit]}"
    return f"{_figure(used, unit)}{own} of {_figure(capacity, _unit(capacity))} {_NAMES[_unit(capacity)]}"


_NAMES = {GIB: "GiB", MIB: "MiB"}


def _unit(size: int) -> int:
    return MIB if size < GIB // 10 else GIB


def _figure(size: int, unit: int) -> str:
    return f"{size / unit:.1f}"
