"""A rehearsal as the Python API returns it, and as text: verdict, method, phases, piles and time."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.terminal import wrapped
from launcher.base.units import GIB, MIB, Pair, counted, duration, gib, rounded
from launcher.job.memory import OUT_OF_MEMORY, OutOfMemory, ran_out
from launcher.preflight.assess import Assessment, as_json
from launcher.preflight.evidence import Measured
from launcher.rehearsing.result import Counters, Phase, RankRehearsed, Rehearsal
from launcher.spec import RunSpec

_WORDS: dict[Measured, str] = {
    "fits": "MEASURED, it fits", "tight": "MEASURED, it fits tightly", "does_not_fit": "MEASURED, it does not fit",
    "unknown": "NO VERDICT",
}  # fmt: skip

_COUNTERS = ("allocated", "needed", "reserved", "device")
_BENT = 0.01  # Smallest non-linearity of the estimate in depth that is mentioned, as a share.

_STANDS_IN = (
    "A CPU stood in for {}: allocated bytes of CPU kernels, beside the estimate for these. It says nothing about"
    " reserved memory, the context, the GPU's attention kernels or speed, and `run --rehearsed` does not accept it."
)
_LEFT_OUT = "A single rank has no communicators and writes no checkpoint: the verdict takes these from the estimate."


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """The answer; ``print`` shows what ``launch rehearse`` prints."""

    rehearsal: Rehearsal
    assessment: Assessment

    @property
    def verdict(self) -> Measured:
        """The measured verdict: ``fits``, ``tight``, ``does_not_fit``, or ``unknown`` when it is not decisive."""
        return self.rehearsal.worst.verdict

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of the rank with the highest need, each with ``predicted`` and ``measured``."""
        return self.rehearsal.worst.phases

    def as_dict(self) -> JsonObject:
        """The document of ``launch rehearse --json`` (docs/contract/documents.md)."""
        return {"schema": 1, "rehearse": self.rehearsal.as_dict(), "check": as_json(self.assessment)}

    def as_text(self, width: int = 80) -> str:
        """The text on a terminal of ``width`` columns."""
        return as_text(self.rehearsal, self.assessment, width)

    def __str__(self) -> str:
        return self.as_text()


def as_text(rehearsal: Rehearsal, assessment: Assessment, width: int = 80) -> str:
    """The rehearsal for a terminal: all phases of the rank with the highest need, and a line for each other rank."""
    spec, worst = assessment.spec, rehearsal.worst
    lines = wrapped(_verdict(spec, rehearsal), width)
    lines += ["", *wrapped(_how(spec, rehearsal), width)]
    for phases, title in _tables(worst):
        lines += ["", *wrapped(title, width), *_table(phases, whole=not worst.ran_out)]
    if worst.piles:
        lines += ["", *_piles(worst, width)]
    if len(rehearsal.ranks) > 1:
        lines += ["", *_others(rehearsal)]
    for text in _remarks(rehearsal, assessment):
        lines += ["", *wrapped(text, width)]
    return "\n".join(lines)


def _verdict(spec: RunSpec, rehearsal: Rehearsal) -> str:
    worst, capacity = rehearsal.worst, spec.rank_memory_bytes
    found = worst.evidence
    at = f"rank {worst.rank} of {rehearsal.world}"
    at += f" (stage {worst.stage})" if spec.parallel.pipeline > 1 else ""
    if worst.ran_out:
        return f"{_WORDS[worst.verdict]}: {at} ran out of the {gib(found.device_bytes or 0)} of {found.device_name}."
    if worst.verdict == "unknown":
        why = f" Only one depth was built, {worst.built[-1].layers} layers, which is not the whole model."
        if worst.extrapolated:
            why = " The estimate is not linear in depth between the models built and the whole model."
        why = "" if rehearsal.stands_in else why
        return f"{_WORDS[worst.verdict]}: measuring {at} does not decide whether the run fits.{why}"
    of = "" if capacity is None else f" of {gib(capacity)}"
    return f"{_WORDS[worst.verdict]}: {gib(found.used_bytes or 0)}{of} on {at}, on {found.device_name}."


def _how(spec: RunSpec, rehearsal: Rehearsal) -> str:
    worst = rehearsal.worst
    built = " and ".join(str(model.layers) for model in worst.built)
    whole = spec.model.num_hidden_layers
    text = f"Built: {spec.model.name} with {built} of {whole} layers; {rehearsal.method}."
    if not worst.extrapolated:
        return text
    first, second = (model.rank_layers for model in worst.built)
    line = f"m({worst.rank_layers}) = m({first}) + (m({second}) - m({first})) / {second - first} x"
    line = f"{line} {worst.rank_layers - first}"
    text += f" The {worst.rank_layers} layers of this rank are extrapolated linearly in depth: {line}."
    if worst.bent is not None and abs(worst.bent) >= _BENT:
        text += f" By the estimate this extrapolation is {-worst.bent / (1 + worst.bent):+.1%} off the whole model."
    return text


def _tables(worst: RankRehearsed) -> Iterator[tuple[Sequence[Phase], str]]:
    for model in worst.built:
        until = " until out of memory" if model.ran_out else ""
        yield model.phases, f"{counted(model.layers, 'layer')}, predicted/measured{until}:"
    if worst.extrapolated:
        yield worst.phases, f"all layers ({worst.rank_layers} on this rank), predicted/extrapolated:"


def _table(phases: Sequence[Phase], *, whole: bool) -> Iterator[str]:
    """A row a phase; an unmeasured counter is a dash, and a counter measured in no phase is left out."""
    shown = [name for name in _COUNTERS if any(_value(phase.measured, name) is not None for phase in phases)]
    shown = shown or ["allocated"]
    largest = max((phase.predicted.allocated_bytes or 0 for phase in phases), default=0)
    unit, name_of_unit = (MIB, "MiB") if largest < GIB // 10 else (GIB, "GiB")
    yield f"  {name_of_unit:<17}" + "".join(f"{name:>17}" for name in shown) + "     error"
    for phase in phases:
        pairs = [Pair(_value(phase.predicted, name), _value(phase.measured, name)) for name in shown]
        cells = ["/".join(pair.texts(lambda size: f"{size / unit:.2f}")) for pair in pairs]
        error = "" if phase.error is None or not whole else f"{phase.error:+.1%}"
        yield f"  {phase.phase.replace('_', ' '):<17}" + "".join(f"{cell:>17}" for cell in cells) + f"{error:>10}"


def _value(counters: Counters, name: str) -> int | None:
    found: int | None = getattr(counters, f"{name}_bytes")
    return found


def _piles(worst: RankRehearsed, width: int) -> list[str]:
    phase = (worst.fullest or "").replace("_", " ")
    parts = []
    for pile in worst.piles:
        if pile.largest_bytes:
            sizes = " / ".join(pile.sizes.texts(gib, unknown="")).removesuffix(" / ")
            parts.append(f"{pile.pile.replace('_', ' ')} {sizes}")
    kind = "predicted / measured" if worst.piles[0].measured_bytes is not None else "predicted"
    return wrapped(f"piles in the {phase} phase, {kind}: {', '.join(parts)}", width)


def _others(rehearsal: Rehearsal) -> Iterator[str]:
    yield "every stage, allocated, predicted/measured:"
    for one in rehearsal.ranks:
        sizes = Pair(one.evidence.predicted_bytes, one.evidence.measured_bytes).texts(gib, unknown="ran out")
        yield f"  stage {one.stage}, rank {one.rank}: {' / '.join(sizes)}"


def _remarks(rehearsal: Rehearsal, assessment: Assessment) -> Iterator[str]:
    spec, seconds = assessment.spec, rehearsal.step_seconds
    if rehearsal.worst.ran_out and (end := ran_out(Path(rehearsal.worst.built[-1].folder))) is not None:
        yield _end(end, rehearsal.worst.built[-1].folder)
    if rehearsal.stands_in:
        yield _STANDS_IN.format(spec.hardware.title)
    elif rehearsal.worst.verdict != "unknown":
        yield _LEFT_OUT
    if seconds is not None:
        text = f"The compute of a step takes {duration(seconds)} on this device, a lower bound for the step:"
        text += f" at most {rounded(rehearsal.tokens / seconds)} tokens/s"
        if assessment.speed is not None:
            text += f"; {rounded(assessment.speed.tokens_per_second)} predicted"
        yield f"{text}."
    if not rehearsal.covers and not rehearsal.stands_in:
        yield "By the estimate another rank may need more, so this does not judge the run: let launch choose the rank."


def _end(found: OutOfMemory, folder: str) -> str:
    where = [f"in the {found.phase} phase"] if found.phase is not None else []
    where += [f"of layer {found.layer}"] if found.layer is not None else []
    where += [f"of step {found.step}"] if found.step else []
    sizes = [] if found.requested_bytes is None else [f"{gib(found.requested_bytes)} requested"]
    sizes += [] if found.free_bytes is None else [f"{gib(found.free_bytes)} were left"]
    return f"Memory ended {' '.join(where)}: {', '.join(sizes) or found.message}. All of it: {folder}/{OUT_OF_MEMORY}"
