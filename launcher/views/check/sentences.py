"""The pre-flight answer in sentences: verdict, reason, speed, data and checkpoints.

The verdict names every place that is too small: device, host or disk. The shares of a step count exposed time only, so
that they add up to the step.
"""

from collections.abc import Iterator

from launcher import backends
from launcher.base import units
from launcher.base.units import GIB, MIB, count, duration, gib, rounded
from launcher.data.files import is_on_hub
from launcher.data.survey import Survey
from launcher.estimate.memory.result import MemoryEstimate
from launcher.estimate.speed.result import SpeedEstimate, name_of
from launcher.estimate.speed.terms import COMMUNICATION, PARTS
from launcher.preflight.assess import Assessment
from launcher.preflight.data import DataFindings
from launcher.preflight.saving import Saves
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec

_WORDS = {"fits": "FITS", "tight": "TIGHT", "does_not_fit": "DOES NOT FIT"}
_UNITS = {GIB: "GiB", MIB: "MiB"}
_PLACES = {"host": "a node's host memory, {}", "disk": "the disk, {} for checkpoints"}
_SHOWN = 0.005  # Smallest share of a step that is named: below it the part would read 0%.

_CROWDED = (
    "the card is nearly full: when the allocator has to free its cache and retry, measured runs fell to between a"
    " third and a tenth of their speed"
)


def answer(spec: RunSpec, verdict: Verdict, estimate: MemoryEstimate) -> str:
    """The verdict on a valid run, with the size and capacity of the place that decides it."""
    word, device = _WORDS[verdict.name], _on_device(spec, verdict, estimate)
    if verdict.capacity_bytes is None and verdict.name == "fits":
        return f"{word} as far as known: {device}; its capacity is unknown, so nothing is refused"
    if spec.rank_memory_bytes is None and _lacks(verdict, "device"):
        device += "; its capacity is unknown, and no known device has more"
    others = [short for short in verdict.shortages if short.place != "device"]
    elsewhere = "; ".join(_PLACES[short.place].format(_of(short.used_bytes, short.capacity_bytes)) for short in others)
    if not elsewhere:
        return f"{word}: {device}"
    is_full = _lacks(verdict, "device")
    return f"{word}: {device}; {elsewhere}" if is_full else f"{word}: {elsewhere}; device memory is enough, {device}"


def not_known(spec: RunSpec) -> str:
    """The verdict on a script for which no model is named."""
    return f"UNKNOWN: launch does not know which model {spec.script} builds, so nothing is refused"


def reason(spec: RunSpec, verdict: Verdict, estimate: MemoryEstimate) -> str:
    """The phase and pile of the peak, the bytes left or short, and the checkpoints when the disk is too small."""
    sentences: list[str] = []
    if verdict.name == "tight":
        sentences.append("The capacity is within the estimate's error band: the run may run out of memory.")
    if _lacks(verdict, "disk"):
        sentences.append(_checkpoints(spec, estimate))
    if verdict.fits or _lacks(verdict, "device"):
        sentences.append(_peak(spec, verdict, estimate))
    if estimate.unmeasured:
        parts = ", ".join(estimate.unmeasured)
        sentences.append(f"Nothing measured backs {parts}: the error band is the widest there is.")
    return " ".join(sentences)


def _lacks(verdict: Verdict, place: str) -> bool:
    return any(short.place == place for short in verdict.shortages)


def _peak(spec: RunSpec, verdict: Verdict, estimate: MemoryEstimate) -> str:
    largest, peak = estimate.largest_pile, estimate.peak
    where = f"in the {peak.phase.replace('_', ' ')} phase"
    where += f" of pipeline stage {peak.stage}" if spec.parallel.pipeline > 1 else ""
    text = f"The largest part is {largest.pile.replace('_', ' ')}, {gib(largest.bytes)}, at the peak {where}"
    if (room := verdict.headroom_bytes) is not None:
        text += f"; {gib(room)} left" if room >= 0 else f"; {gib(-room)} short"
    return f"{text}."


def _on_device(spec: RunSpec, verdict: Verdict, estimate: MemoryEstimate) -> str:
    used, outside, peak = verdict.used_bytes or 0, estimate.outside_bytes, estimate.peak
    low, high = (f"{(end + outside) / _unit(used):.1f}" for end in (peak.low_bytes, peak.high_bytes))
    noun = "GPU" if spec.hardware.device == "cuda" else "rank"
    place = f"fullest {noun}" if spec.gpus > 1 else noun
    return f"{_of(used, verdict.capacity_bytes)} on the {place} ({low} to {high})"


def _checkpoints(spec: RunSpec, estimate: MemoryEstimate) -> str:
    number = estimate.disk.kept_bytes // max(1, estimate.disk.checkpoint_bytes)
    if number == 1:
        return "A single checkpoint does not fit on the disk."
    size = gib(estimate.disk.checkpoint_bytes)
    return f"{number} checkpoints of {size} are on disk at once: save.keep={spec.save.keep} plus the one being written."


def _of(used: int, capacity: int | None) -> str:
    """``37.9 of 79.7 GiB``; each size has its own unit when the units differ."""
    unit = _unit(used)
    if capacity is None:
        return f"{used / unit:.1f} {_UNITS[unit]}"
    whole = _unit(capacity)
    own = "" if whole == unit else f" {_UNITS[unit]}"
    return f"{used / unit:.1f}{own} of {capacity / whole:.1f} {_UNITS[whole]}"


def _unit(size: int) -> int:
    return MIB if size < GIB // 10 else GIB


def speed(assessment: Assessment) -> list[str]:
    """The speed of a valid run in sentences; empty on the CPU, for which no speed is predicted."""
    spec, found = assessment.spec, assessment.speed
    if found is None:
        cpu = spec.hardware.device == "cpu"
        return [] if cpu or assessment.speed_unknown is None else [f"speed unknown: {assessment.speed_unknown}"]
    fitted = "" if assessment.verdict.fits else "if it fit: "
    crowded = [_CROWDED] if found.crowded else []
    return [f"{fitted}{_speed(spec, found)}: {', '.join(_shares(found))}", *crowded, *_length(spec, found)]


def _speed(spec: RunSpec, speed: SpeedEstimate) -> str:
    constant = speed.constant
    runs = f"{constant.rows} runs on this cluster" if constant.rows > 1 else f"the run {constant.whose}"
    here = f", from {runs}" if constant.here else ""
    band = f" ({rounded(speed.low)} to {rounded(speed.high)}{here})" if constant.rows else ""
    peak = f"{speed.mfu:.0%} of the card's {backends.of(spec).dtypes(spec).compute} peak"
    return (
        f"about {rounded(speed.tokens_per_second_per_gpu)} tokens/s a GPU{band}, {peak};"
        f" {rounded(speed.step_seconds, 2)} s a step"
    )


def _shares(speed: SpeedEstimate) -> Iterator[str]:
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
    hours = speed.gpu_hours(spec)
    if hours is None:
        return
    steps, price = spec.steps, speed.price(spec)
    paid = "" if price is None else f", cost {rounded(price)} at {spec.cluster.price_per_gpu_hour:g} a GPU-hour"
    evaluated = f", {count(spec.evaluation_batches)} batches evaluated" if spec.evaluation_batches else ""
    yield (
        f"{units.steps(steps)}, {count(steps * speed.tokens)} tokens{evaluated}: {duration(speed.run_seconds(spec))},"
        f" {rounded(hours)} GPU-hours{paid}"
    )


def data(seen: DataFindings) -> str:
    """The survey of the data in one line; empty when there is nothing to say."""
    spec, found, survey = seen.spec, seen.spec.data, seen.survey
    if survey is not None:
        return f"data: {'; '.join([_amount(survey), *_epoch(seen, survey), *_conversations(seen), *_flaws(survey)])}"
    if seen.errors or spec.script is not None or not is_on_hub(found):
        return ""
    return f"data: {found.path} on the Hugging Face Hub, split {found.split}: read only when the job downloads it"


def _epoch(seen: DataFindings, survey: Survey) -> Iterator[str]:
    if seen.passes:
        yield f"in stages its sets are read {', '.join(f'{each:.3g}' for each in seen.passes)} times"
    if not seen.samples:
        return
    steps, wanted = seen.samples / seen.spec.global_batch_size, seen.spec.steps
    about = "about " if survey.tokens_error else ""
    share = f"{wanted / steps:.3g} epochs" if wanted > steps else f"{100 * wanted / steps:.3g}% of that"
    run = "1 step is" if wanted == 1 else f"{wanted} steps are"
    number = f"{steps:,.0f}" if steps >= 100 else f"{steps:.3g}"
    yield f"an epoch is {_number(seen.samples, about)} samples = {number} steps; {run} {share}"


def _conversations(seen: DataFindings) -> Iterator[str]:
    found = seen.conversations
    if found is not None:
        full = "; TRL pads to the longest row of a micro-batch, the estimate assumes full rows"
        trl = full if seen.spec.task.name != "pretrain" and found["padding"] else ""
        how = "left out" if seen.spec.task.name == "reward" else "cut off"
        yield f"{found['cut']:.0%} of the samples are {how}, {found['padding']:.0%} of their tokens are padding{trl}"


def _amount(survey: Survey) -> str:
    files = f"{survey.files:,} file{'s' if survey.files > 1 else ''} of {survey.format}"
    if survey.columns:
        files += f" ({', '.join(survey.columns)})"
    if survey.other_splits:
        left_out = ", ".join(f"{number:,} of {name}" for name, number in survey.other_splits)
        files += f", excluding files of other splits ({left_out})"
    parts = [files]
    if survey.rows is not None and survey.format != "text":
        parts.append(f"{_number(survey.rows, '' if survey.rows_exact else 'about ')} rows")
    if survey.tokens is not None:
        about = f" ± {survey.tokens_error / max(1, survey.tokens):.1%}" if survey.tokens_error else ""
        parts.append(f"{_number(survey.tokens, about)} tokens{about}")
    return ", ".join(parts)


def _number(number: int, about: str) -> str:
    return f"{'about ' if about.startswith('about') else ''}{count(number)}" if about else f"{number:,}"


def _flaws(survey: Survey) -> Iterator[str]:
    counts = ((survey.empty, "empty"), (survey.duplicates, "duplicate"))
    flaws = [f"{number:,} {name}" for number, name in counts if number]
    if flaws:
        of = f"all {survey.seen:,} rows" if survey.whole else f"{survey.seen:,} sampled rows"
        yield f"{' and '.join(flaws)} of {of}"
    elif not survey.whole and survey.tokens_error:
        yield f"from a sample of {survey.seen:,} rows" if survey.seen else "from a sample"


def checkpoints(spec: RunSpec, saves: Saves) -> str:
    """Checkpoint sizes and the time of a save, as a clause."""
    disk = saves.disk
    text = f"a checkpoint: {gib(disk.checkpoint_bytes)}"
    if (number := disk.kept_bytes // max(1, disk.checkpoint_bytes)) > 1:
        one_more = " plus the one being written" if number > spec.save.keep else ""
        text += f", up to {gib(disk.kept_bytes)} on disk ({number - bool(one_more)} kept{one_more})"
    if disk.swapped_bytes:
        text += f", {gib(disk.swapped_bytes)} of each node in {spec.zero.nvme_path}"
    if saves.seconds is None or saves.bandwidth is None:
        return text
    text += f", written in {duration(saves.seconds)} at {rounded(saves.bandwidth / 1e9)} GB/s ({saves.source})"
    if spec.save.asynchronous and saves.blocking_seconds is not None:
        text += f", {duration(saves.blocking_seconds)} of it blocking training"
    return text
