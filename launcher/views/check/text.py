"""The pre-flight answer as terminal text: verdict, reason, evidence, and what to change.

Text is wrapped to the width, except overrides, which are meant to be pasted. Memory that torch's allocator caches and
releases before running out is drawn apart from what is needed: a run that fits may reserve more than the capacity.
"""

from collections.abc import Iterable, Iterator, Sequence

from launcher import backends
from launcher.base import secret, units
from launcher.base.errors import ConfigError
from launcher.base.terminal import visible, wrapped
from launcher.base.units import MIB, count, gib
from launcher.estimate.memory.result import HostMemory, MemoryEstimate
from launcher.preflight.assess import Assessment
from launcher.preflight.fixes import Fix
from launcher.rules.world import ranks
from launcher.spec import HardwareSpec, RunSpec
from launcher.views.check import sentences
from launcher.views.check.sentences import answer, not_known, reason

_SMALLEST = MIB // 20  # Smallest pile shown, in bytes: less would be printed as 0.0 MiB.
_PILE, _NEEDED, _OVER, _CACHED, _CAPACITY = "#=!.-"
"""Characters of the bars: a pile, then of the whole process needed, over capacity and cached memory; the capacity."""


def heading(assessment: Assessment) -> tuple[str, str]:
    """The run with its layout, and the verdict, each as one line, for a valid run."""
    spec, estimate, verdict = assessment.spec, assessment.estimate, assessment.verdict
    if estimate is None:
        return _headline(spec), f"{not_known(spec)}."
    said = f"{answer(spec, verdict, estimate)}. {reason(spec, verdict, estimate)}"
    return f"{_headline(spec)}: {_layout(spec)}", said


def as_text(assessment: Assessment, width: int = 80) -> str:
    """The answer for a terminal of ``width`` columns: verdict, reason, evidence, and what to change."""
    spec, estimate = assessment.spec, assessment.estimate
    if assessment.errors:
        lines = wrapped(_invalid(assessment), width)
        lines += ["", *findings_as_text("error", assessment.errors, width)]
    elif estimate is None:
        lines = [*wrapped(not_known(spec), width), "", *wrapped(_headline(spec), width)]
    else:
        lines = wrapped(answer(spec, assessment.verdict, estimate), width)
        lines += wrapped(reason(spec, assessment.verdict, estimate), width)
        lines += _paragraph(wrapped(sentences.speed(assessment), width))
        lines += _paragraph(wrapped(_rehearsed(assessment), width))
        lines += ["", *_evidence(assessment, estimate, width)]
    if assessment.warnings:
        lines += ["", *findings_as_text("warning", assessment.warnings, width)]
    lines += _fixes(assessment, width)
    return "\n".join(lines)


def _paragraph(lines: list[str]) -> list[str]:
    return ["", *lines] if lines else []


def _rehearsed(assessment: Assessment) -> str:
    found, spec = assessment.rehearsed, assessment.spec
    if found is None:
        return ""
    measured = found.verdict(spec.rank_memory_bytes)
    other = measured != "unknown" and (measured == "does_not_fit") == assessment.verdict.fits
    return found.as_text(spec) + ("; `launch run --rehearsed` takes that verdict" if other else "")


def _invalid(assessment: Assessment) -> str:
    number = len(assessment.errors)
    text = f"INVALID: {units.counted(number, 'error')}"
    return f"{text} in {_headline(assessment.spec)}" if assessment.as_typed else text


def _evidence(assessment: Assessment, estimate: MemoryEstimate, width: int) -> Iterator[str]:
    spec, capacity = assessment.spec, assessment.verdict.capacity_bytes
    data = "" if assessment.data is None else sentences.data(assessment.data)
    yield from wrapped((f"{_headline(spec)}: {_layout(spec)}", _batch(spec), data, _formats(spec)), width)
    yield from ("", *_bars(estimate, capacity, width))
    yield from wrapped(_legend(estimate, spec.hardware, capacity), width, "  ", "    ")
    yield from ("", *wrapped(_phases(estimate), width))
    yield from wrapped(_elsewhere(assessment, estimate), width)
    yield from _target(spec, width)


def errors_as_text(errors: Sequence[ConfigError], width: int = 80) -> str:
    """The errors alone, as printed to stderr."""
    return "\n".join(findings_as_text("error", errors, width))


def findings_as_text(kind: str, findings: Iterable[ConfigError], width: int) -> list[str]:
    """Errors or warnings: the place and the rule, then each way out on its own line."""
    lines: list[str] = []
    for finding in findings:
        text = visible(f"{kind}: {finding.where}: {finding.rule}")  # A rule may quote control characters from a file.
        lines += wrapped(text, width, rest="  ")
        for number, way in enumerate(finding.way_out):
            lines.append(f"  {'try' if number == 0 else ' or'}  {way}")
    return lines


def _headline(spec: RunSpec) -> str:
    parallel, cluster, hardware = spec.parallel, spec.cluster, spec.hardware
    world = f"{spec.gpus} x {hardware.title}" if hardware.device == "cuda" else f"{ranks(spec)} on {hardware.title}"
    nodes = f" on {cluster.nodes} nodes" if cluster.nodes > 1 else ""
    if spec.judges_no_model:
        return secret.redacted(f"{spec.script}; {world}{nodes}")
    engine = spec.backend.name if parallel.name == spec.backend.name else f"{parallel.name} ({spec.backend.name})"
    return secret.redacted(f"{spec.model.name}, {engine}, {spec.precision.name}; {world}{nodes}")


def _layout(spec: RunSpec) -> str:
    return " x ".join(spec.named_degrees) or "one rank"


def _batch(spec: RunSpec) -> str:
    micro, accumulation = spec.micro_batch_size, spec.gradient_accumulation
    parts = [f"micro-batch {micro}", f"data {spec.data_degree}", f"accumulation {accumulation}"]
    noun = "sequence" if spec.global_batch_size == 1 else "sequences"
    total = f"{spec.global_batch_size} {noun} of {spec.sequence_length} tokens"
    tokens = spec.train.tokens
    length = "" if tokens is None or spec.script is not None else f"; {units.steps(spec.steps)} for {tokens:,} tokens"
    if spec.train.epochs is not None and spec.script is None:
        length = f"; {units.steps(spec.steps)} for {spec.train.epochs:g} epochs"
    return f"a step: {' x '.join(parts)} = {total} = {spec.tokens_per_step:,} tokens{length}"


def _formats(spec: RunSpec) -> str:
    formats, name = backends.of(spec).dtypes(spec), spec.precision.name
    parts = [f"parameters {formats.parameters}", f"gradients {formats.gradients}", f"reduce {formats.reduce}"]
    parts.append(f"master {formats.master or 'none'}")
    if formats.autocast or formats.compute != name:
        parts.insert(1, f"compute {formats.compute}{' (autocast)' if formats.autocast else ''}")
    if formats.optimizer_states != "fp32":
        parts.append(f"optimizer {formats.optimizer_states}")
    taken = "; CPU ranks default to fp32, since bf16 is many times slower on most CPUs"
    is_default = spec.hardware.device == "cpu" and name == "fp32"
    return f"{name} means: {', '.join(parts)}{taken if is_default else ''}"


def _phases(estimate: MemoryEstimate) -> str:
    peaks = ", ".join(f"{phase.replace('_', ' ')} {gib(size)}" for phase, size in estimate.phases.items())
    return f"allocated by phase: {peaks}; between steps {gib(estimate.static_bytes)}"


def _elsewhere(assessment: Assessment, estimate: MemoryEstimate) -> str:
    parameters, host = estimate.parameters, estimate.host
    active = "" if parameters.active == parameters.total else f" ({count(parameters.active)} active)"
    text = f"parameters: {count(parameters.total)}{active}, {count(parameters.per_rank)} kept on the worst rank"
    if host.bytes_per_node:
        text += f"; host memory: {gib(host.bytes_per_node)} a node{_of_host(host)}"
        text += " (capacity unknown: set hardware.host_memory_bytes)" if host.capacity_bytes is None else ""
    return text if assessment.saves is None else f"{text}; {sentences.checkpoints(assessment.spec, assessment.saves)}"


def _of_host(host: HostMemory) -> str:
    sizes = {name: sum(term.bytes for term in terms) for name, terms in host.piles.items()}
    shown = sorted(((name, size) for name, size in sizes.items() if size >= _SMALLEST), key=lambda item: -item[1])
    named = [f"{name} {gib(size)}" for name, size in shown]
    return f" ({', '.join(named)})" if len(named) > 1 else ""


def _target(spec: RunSpec, width: int) -> list[str]:
    if spec.hardware.device != "cpu":
        return []
    text = f"judged for {ranks(spec)} of this machine; no speed is predicted for a CPU. To judge GPUs, name them:"
    return ["", *wrapped(text, width), "  hardware=h100_80g cluster.gpus_per_node=8"]


def _fixes(assessment: Assessment, width: int) -> list[str]:
    verdict, spec = assessment.verdict, assessment.spec
    lines = []
    if assessment.fixes:
        here = [fix for fix in assessment.fixes if fix.spec.gpus <= spec.gpus]
        more = [fix for fix in assessment.fixes if fix.spec.gpus > spec.gpus]
        lines += _ways(f"what would {'leave room' if verdict.fits else 'fit'}, cheapest first:", here, width)
        noun = "GPUs" if spec.hardware.device == "cuda" else "ranks"
        lines += _ways(f"with more {noun} than {spec.gpus}, fewest first:", more, width)
    elif verdict.name == "tight":
        text = "no change that was tried leaves room: measure a few steps (train.steps=3; the peak is in memory.json)"
        lines += ["", *wrapped(text, width)]
    elif assessment.nearest is not None:
        lines += _ways("no change that was tried fits; the closest is not enough:", [assessment.nearest], width)
    elif verdict.name == "does_not_fit":
        lines += ["", "no single change brings it closer."]
    if any(short.place == "disk" for short in verdict.shortages):
        lines += ["", "put the run folder on another disk:", "  run.directory=/path/on/a/larger/disk"]
    return lines


def _ways(title: str, fixes: Sequence[Fix], width: int) -> list[str]:
    return ["", title, *(line for fix in fixes for line in _fix(fix, width))] if fixes else []


def _fix(fix: Fix, width: int) -> list[str]:
    price = wrapped(f"needs {gib(fix.peak_bytes)}; {fix.price}", width, "      ", "      ")
    return [f"  {' '.join(fix.overrides)}", *price]


def _bars(estimate: MemoryEstimate, capacity: int | None, width: int) -> Iterator[str]:
    piles = sorted((pile for pile in estimate.piles if pile.bytes >= _SMALLEST), key=lambda pile: -pile.bytes)
    total, room = max(1, estimate.peak.device_bytes), max(10, width - 36)
    for pile in piles:
        cached = round(room * _cached_bytes(estimate) / total) if pile.pile == "fragmentation" else 0
        length = max(1, round(room * pile.bytes / total))
        yield _bar(pile.pile.replace("_", " "), pile.bytes, _PILE * (length - cached) + _CACHED * cached)
    scale = room / max(total, capacity or 0)
    needed = total - _cached_bytes(estimate)
    inside = round(scale * min(needed, needed if capacity is None else capacity))
    over = round(scale * needed) - inside
    rest = round(scale * total) - inside - over
    yield _bar("whole process", total, _NEEDED * inside + _OVER * over + _CACHED * rest)
    if capacity is not None:
        yield _bar("capacity", capacity, _CAPACITY * round(scale * capacity))


def _bar(name: str, size: int, bar: str) -> str:
    return f"  {name:17}{gib(size):>12}  {bar}".rstrip()


def _cached_bytes(estimate: MemoryEstimate) -> int:
    """Bytes that the allocator reserves beyond the need, and releases before running out."""
    return max(0, estimate.peak.reserved_bytes - estimate.peak.needed_bytes)


def _legend(estimate: MemoryEstimate, hardware: HardwareSpec, capacity: int | None) -> Iterator[str]:
    peak, cached = estimate.peak, _cached_bytes(estimate)
    needed = peak.device_bytes - cached
    if peak.device_bytes != peak.allocated_bytes:
        parts = [f"{_bare(peak.allocated_bytes)} allocated"]
        parts += [f"{_bare(lost)} fragmented"] if (lost := peak.needed_bytes - peak.allocated_bytes) else []
        parts += [f"{_bare(outside)} outside torch"] if (outside := estimate.outside_bytes) else []
        yield f"{_NEEDED} needed {gib(needed)}: {', '.join(parts)}"
    if capacity is not None and needed > capacity:
        yield f"{_OVER} over capacity: {gib(needed - capacity)}"
    if cached:
        reserved = f"held by torch (reserved {_bare(peak.reserved_bytes)})"
        yield f"{_CACHED} cached {gib(cached)}: {reserved}, released when short"
    if capacity is not None and hardware.memory_bytes is not None and hardware.memory_bytes > capacity:
        kept = f"{_bare(hardware.memory_bytes - capacity)}{' (assumed)' if hardware.reserved_bytes is None else ''}"
        yield f"{_CAPACITY} capacity: {gib(hardware.memory_bytes)} less the driver's {kept}"


def _bare(size: int) -> str:
    return gib(size).removesuffix(" GiB")
