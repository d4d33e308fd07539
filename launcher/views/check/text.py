"""The answer of the pre-flight as text for a terminal: the verdict, the reason, the evidence, and what to do.

It is filled to the terminal's width, overrides excepted: these are to be pasted.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from launcher import backends
from launcher.base import secret, units
from launcher.base.errors import ConfigError
from launcher.base.terminal import visible
from launcher.base.units import count, gib
from launcher.estimate.memory.result import HostMemory, MemoryEstimate
from launcher.preflight import saving
from launcher.preflight.assess import Assessment
from launcher.preflight.fixes import Fix
from launcher.rules.world import ranks
from launcher.spec import RunSpec
from launcher.views.check import speed_line
from launcher.views.check.answer import answer, not_known, reason
from launcher.views.check.bars import SMALLEST, bars, legend


def heading(assessment: Assessment) -> tuple[str, str]:
    """The run with its layout, and the verdict: each one line of prose for a valid run."""
    spec, estimate, verdict = assessment.spec, assessment.estimate, assessment.verdict
    if estimate is None:
        return _headline(spec), f"{not_known(spec)}."
    said = f"{answer(spec, verdict, estimate)}. {reason(spec, verdict, estimate)}"
    return f"{_headline(spec)}: {_layout(spec)}", said


def as_text(assessment: Assessment, width: int = 80) -> str:
    """The answer for a terminal of ``width`` columns: the verdict, the reason, the evidence, and what to do."""
    spec, estimate = assessment.spec, assessment.estimate
    if assessment.errors:
        lines = _wrapped(_invalid(assessment), width)
        lines += ["", *findings_as_text("error", assessment.errors, width)]
    elif estimate is None:
        lines = [*_wrapped(not_known(spec), width), "", *_wrapped(_headline(spec), width)]
    else:
        lines = _wrapped(answer(spec, assessment.verdict, estimate), width)
        lines += _wrapped(reason(spec, assessment.verdict, estimate), width)
        lines += _paragraph([line for text in speed_line.sentences(assessment) for line in _wrapped(text, width)])
        lines += _paragraph(_wrapped(_rehearsed(assessment), width))
        lines += ["", *_evidence(assessment, estimate, width)]
    if assessment.warnings:
        lines += ["", *findings_as_text("warning", assessment.warnings, width)]
    lines += _fixes(assessment, width)
    return "\n".join(lines)


def _paragraph(lines: list[str]) -> list[str]:
    return ["", *lines] if lines else []


def _rehearsed(assessment: Assessment) -> str:
    """What was measured of a rank, and how its verdict is taken where the estimate has another one."""
    found, spec = assessment.rehearsed, assessment.spec
    if found is None:
        return ""
    measured = found.verdict(spec.rank_memory_bytes)
    other = measured != "unknown" and (measured == "does_not_fit") == assessment.verdict.fits
    return found.as_text(spec) + ("; `launch run --rehearsed` takes that verdict" if other else "")


def _invalid(assessment: Assessment) -> str:
    """How many errors there are; the run only where it is the one that was typed, and no default stands in for it."""
    number = len(assessment.errors)
    text = f"INVALID: {number} error{'' if number == 1 else 's'}"
    return f"{text} in {_headline(assessment.spec)}" if assessment.as_typed else text


def _evidence(assessment: Assessment, estimate: MemoryEstimate, width: int) -> Iterator[str]:
    """The run, its step and formats, the piles and the whole, and the figures beside them."""
    spec, capacity = assessment.spec, assessment.verdict.capacity_bytes
    yield from _wrapped(f"{_headline(spec)}: {_layout(spec)}", width)
    yield from _wrapped(_batch(spec), width)
    yield from _wrapped("" if assessment.data is None else assessment.data.as_text(), width)
    yield from _wrapped(_formats(spec), width)
    yield from ("", *bars(estimate, capacity, width))
    for text in legend(estimate, spec.hardware, capacity):
        yield from textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    yield from ("", *_wrapped(_phases(estimate), width))
    yield from _wrapped(_elsewhere(assessment, estimate), width)
    yield from _target(spec, width)


def errors_as_text(errors: Sequence[ConfigError], width: int = 80) -> str:
    """Errors alone, as they go to stderr."""
    return "\n".join(findings_as_text("error", errors, width))


def findings_as_text(kind: str, findings: Iterable[ConfigError], width: int) -> list[str]:
    """Errors or warnings: where, what was found, the rule, and the ways out on lines of their own."""
    lines: list[str] = []
    for finding in findings:
        text = visible(f"{kind}: {finding.where}: {finding.rule}")  # A program may print it by itself.
        lines += textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)
        for number, way in enumerate(finding.way_out):
            lines.append(f"  {'try' if number == 0 else ' or'}  {way}")
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)


def _headline(spec: RunSpec) -> str:
    parallel, cluster, hardware = spec.parallel, spec.cluster, spec.hardware
    world = f"{spec.gpus} x {hardware.title}" if hardware.device == "cuda" else f"{ranks(spec)} on {hardware.title}"
    nodes = f" on {cluster.nodes} nodes" if cluster.nodes > 1 else ""
    if spec.judges_no_model:
        return secret.hidden(f"{spec.script}; {world}{nodes}")
    engine = spec.backend.name if parallel.name == spec.backend.name else f"{parallel.name} ({spec.backend.name})"
    return secret.hidden(f"{spec.model.name}, {engine}, {spec.precision.name}; {world}{nodes}")


def _layout(spec: RunSpec) -> str:
    degrees = [("data", spec.data_degree)]
    degrees += [(name, getattr(spec.parallel, name)) for name in ("tensor", "pipeline", "context", "ulysses", "expert")]
    return " x ".join(f"{name} {degree}" for name, degree in degrees if degree > 1) or "one rank"


def _batch(spec: RunSpec) -> str:
    micro, accumulation = spec.micro_batch_size, spec.gradient_accumulation
    parts = [f"micro-batch {micro}", f"data {spec.data_degree}", f"accumulation {accumulation}"]
    noun = "sequence" if spec.global_batch_size == 1 else "sequences"
    total = f"{spec.global_batch_size} {noun} of {spec.sequence_length} tokens"
    tokens = spec.train.tokens
    length = "" if tokens is None or spec.script is not None else f"; {units.steps(spec.steps)} for {tokens:,} tokens"
    return f"a step: {' x '.join(parts)} = {total} = {spec.tokens_per_step:,} tokens{length}"


def _formats(spec: RunSpec) -> str:
    """The meaning of the precision for the engine, as docs/precision.md has it for all of them."""
    formats, name = backends.of(spec).dtypes(spec), spec.precision.name
    parts = [f"parameters {formats.parameters}", f"gradients {formats.gradients}", f"reduce {formats.reduce}"]
    parts.append(f"master {formats.master or 'none'}")
    if formats.autocast or formats.compute != name:
        parts.insert(1, f"compute {formats.compute}{' (autocast)' if formats.autocast else ''}")
    if formats.optimizer_states != "fp32":
        parts.append(f"optimizer {formats.optimizer_states}")
    taken = "; CPU ranks take fp32 where no precision is named, as bf16 takes many times as long on most CPUs"
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
        text += " (what it has is unknown: hardware.host_memory_bytes)" if host.capacity_bytes is None else ""
    return text if assessment.saves is None else f"{text}; {saving.as_text(assessment.spec, assessment.saves)}"


def _of_host(host: HostMemory) -> str:
    """The piles of a node's host memory, where there are several, the largest first."""
    sizes = {name: sum(term.bytes for term in terms) for name, terms in host.piles.items()}
    shown = sorted(((name, size) for name, size in sizes.items() if size >= SMALLEST), key=lambda item: -item[1])
    named = [f"{name} {gib(size)}" for name, size in shown]
    return f" ({', '.join(named)})" if len(named) > 1 else ""


def _target(spec: RunSpec, width: int) -> list[str]:
    """Say aloud that a run on CPU ranks was judged, and how to name the GPU that is meant."""
    if spec.hardware.device != "cpu":
        return []
    text = f"judged for {ranks(spec)} of this machine, whose speed is not predicted; to judge GPUs, name them:"
    return ["", *_wrapped(text, width), "  hardware=h100_80g cluster.gpus_per_node=8"]


def _fixes(assessment: Assessment, width: int) -> list[str]:
    """The ways out, those that take no more GPUs than the run has first, and for a disk another one."""
    verdict, spec = assessment.verdict, assessment.spec
    lines = []
    if assessment.fixes:
        here = [fix for fix in assessment.fixes if fix.spec.gpus <= spec.gpus]
        more = [fix for fix in assessment.fixes if fix.spec.gpus > spec.gpus]
        lines += _ways(f"what would {'leave room' if verdict.fits else 'fit'}, cheapest first:", here, width)
        noun = "GPUs" if spec.hardware.device == "cuda" else "ranks"
        lines += _ways(f"with more {noun} than {spec.gpus}, fewest first:", more, width)
    elif verdict.name == "tight":
        text = "nothing that was tried leaves room: measure a few steps (train.steps=3; the peak is in memory.json)"
        lines += ["", *_wrapped(text, width)]
    elif assessment.nearest is not None:
        lines += _ways("nothing that was tried fits; the nearest is not enough:", [assessment.nearest], width)
    elif verdict.name == "does_not_fit":
        lines += ["", "no single change brings it nearer."]
    if any(short.place == "disk" for short in verdict.shortages):
        lines += ["", "a run folder on another disk:", "  run.directory=/path/on/a/larger/disk"]
    return lines


def _ways(title: str, fixes: Sequence[Fix], width: int) -> list[str]:
    return ["", title, *(line for fix in fixes for line in _fix(fix, width))] if fixes else []


def _fix(fix: Fix, width: int) -> list[str]:
    text = f"needs {gib(fix.peak_bytes)}; {fix.price}"
    indent = "      "
    return [
        f"  {' '.join(fix.overrides)}",
        *textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False),
    ]
