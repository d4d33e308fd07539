"""The answer of the pre-flight: as the document of ``launch check --json``, and as text for a terminal.

Both are made from one :class:`Assessment` and hold the same numbers. The document has every key of docs/contract.md in
any case, null where an invalid run has no answer. The text is filled to the terminal's width, overrides excepted: these
are to be pasted.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from launcher.errors import ConfigError
from launcher.memory.band import Band
from launcher.memory.result import HostMemory, MemoryEstimate
from launcher.preflight.assess import Assessment
from launcher.preflight.fixes import Fix
from launcher.rules.world import ranks
from launcher.spec import HardwareSpec, RunSpec
from launcher.units import MIB, count, gib

_NOTHING = {
    "spec_hash": None,
    "gpu": None,
    "world": None,
    "parameters": None,
    "static_bytes": None,
    "peak": None,
    "phases": None,
    "piles": None,
    "ranks": None,
    "host": None,
    "disk": None,
    "fixes": None,
    "data": None,
}


def invalid_as_json(errors: Iterable[ConfigError], warnings: Iterable[ConfigError] = ()) -> dict[str, Any]:
    """The document of a configuration that is wrong: its errors, and null for the rest."""
    return {
        "schema": 1,
        "verdict": "invalid",
        "warnings": [warning.as_dict() for warning in warnings],
        "errors": [error.as_dict() for error in errors],
        **_NOTHING,
    }


def as_json(assessment: Assessment) -> dict[str, Any]:
    """The document of ``launch check --json`` (docs/contract.md)."""
    spec, estimate = assessment.spec, assessment.estimate
    if estimate is None:
        return invalid_as_json(assessment.errors, assessment.warnings)
    return {
        "schema": 1,
        "verdict": assessment.verdict.name,
        "spec_hash": spec.hash,
        "warnings": [warning.as_dict() for warning in assessment.warnings],
        "errors": [],
        "gpu": {"name": spec.hardware.name, "memory_bytes": spec.rank_memory_bytes},
        "world": world_as_json(spec),
        **estimate.as_dict(),
        "fixes": [fix.as_dict() for fix in assessment.fixes],
        "data": None if assessment.data is None else assessment.data.as_dict(),
    }


def world_as_json(spec: RunSpec) -> dict[str, int]:
    """The degrees of the world and the micro-batches of a step."""
    world = spec.world
    names = ("gpus", "data", "tensor", "pipeline", "context", "expert", "gradient_accumulation")
    return {name: getattr(world, name) for name in names}


def heading(assessment: Assessment) -> tuple[str, str]:
    """The run with its layout, and the verdict: each one line of prose for a valid run."""
    if assessment.estimate is None:
        raise AssertionError("a heading for a run that is not valid")
    return f"{_headline(assessment.spec)}: {_layout(assessment.spec)}", _verdict(assessment, assessment.estimate)


def as_text(assessment: Assessment, width: int = 80) -> str:
    """The answer for a terminal of ``width`` columns."""
    spec, estimate = assessment.spec, assessment.estimate
    lines = _wrapped(_headline(spec) + ("" if assessment.errors else f": {_layout(spec)}"), width)
    if estimate is not None:
        lines += _wrapped(_batch(spec), width)
        lines += _wrapped("" if assessment.data is None else assessment.data.as_text(), width)
        lines += ["", *_wrapped(_verdict(assessment, estimate), width), ""]
        lines += [*_piles(assessment, estimate, width), "", *_wrapped(_phases(estimate), width)]
        lines += _wrapped(_elsewhere(estimate), width)
        lines += _wrapped(_kept(spec.hardware), width)
        lines += _target(spec, width)
    if assessment.warnings:
        lines += ["", *findings_as_text("warning", assessment.warnings, width)]
    if assessment.errors:
        lines += ["", *findings_as_text("error", assessment.errors, width)]
    lines += _fixes(assessment, width)
    return "\n".join(lines)


def errors_as_text(errors: Sequence[ConfigError], width: int = 80) -> str:
    """Errors alone, as they go to stderr."""
    return "\n".join(findings_as_text("error", errors, width))


def findings_as_text(kind: str, findings: Iterable[ConfigError], width: int) -> list[str]:
    """Errors or warnings: where, what was found, the rule, and the ways out on lines of their own."""
    lines: list[str] = []
    for finding in findings:
        text = f"{kind}: {finding.where}: {finding.rule}"
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
    engine = spec.backend.name if parallel.name == spec.backend.name else f"{parallel.name} ({spec.backend.name})"
    return f"{spec.model.name}, {engine}, {spec.precision.name}; {world}{nodes}"


def _layout(spec: RunSpec) -> str:
    degrees = [("data", spec.data_degree)]
    degrees += [(name, getattr(spec.parallel, name)) for name in ("tensor", "pipeline", "context", "ulysses", "expert")]
    return " x ".join(f"{name} {degree}" for name, degree in degrees if degree > 1) or "one rank"


def _batch(spec: RunSpec) -> str:
    micro, accumulation = spec.train.micro_batch_size, spec.gradient_accumulation
    parts = [f"micro-batch {micro}", f"data {spec.data_degree}", f"gradient accumulation {accumulation}"]
    tokens = spec.global_batch_size * spec.sequence_length
    noun = "sequence" if spec.global_batch_size == 1 else "sequences"
    total = f"{spec.global_batch_size} {noun} of {spec.sequence_length} tokens"
    return f"a step: {' x '.join(parts)} = {total} = {tokens:,} tokens"


def _verdict(assessment: Assessment, estimate: MemoryEstimate) -> str:
    verdict, peak, largest = assessment.verdict, estimate.peak, estimate.largest_pile
    where = f"in the {peak.phase.replace('_', ' ')} phase"
    if assessment.spec.parallel.pipeline > 1:
        where += f" of pipeline stage {peak.stage}"
    used = gib(verdict.used_bytes or 0)
    band = f"{gib(peak.low_bytes + estimate.outside_bytes)} to {gib(peak.high_bytes + estimate.outside_bytes)}"
    if estimate.band is not None and not estimate.band.own:
        band += _borrowed(estimate.band)
    pile = f"The largest pile is {largest.pile.replace('_', ' ')} with {gib(largest.bytes)}."
    if verdict.capacity_bytes is None:
        return (
            f"FITS as far as is known: the memory of {assessment.spec.hardware.title} is unknown, so nothing is"
            f" refused. The worst rank needs {used} (band {band}) {where}. {pile}"
        )
    word = {"fits": "FITS", "tight": "TIGHT", "does_not_fit": "DOES NOT FIT"}[verdict.name]
    tight = ": the capacity lies within the estimate's error" if verdict.name == "tight" else ""
    left = f" and leaves {gib(room)}" if (room := verdict.headroom_bytes or 0) > 0 else ""
    places = [short for short in verdict.shortages if short.place != "device"]
    short = "".join(
        f" {_PLACES[place.place]} {gib(place.used_bytes)} of {gib(place.capacity_bytes)}." for place in places
    )
    return (
        f"{word}{tight}. The worst rank needs {used} (band {band}) of {gib(verdict.capacity_bytes)}"
        f" {where}{left}.{short} {pile}"
    )


def _borrowed(band: Band) -> str:
    """Text that names the runs of a band, where they are not of the framework's own."""
    if band.runs_on is not None:
        return f", that of {band.rows} runs of {band.whose}, which is {band.runs_on} too"
    return f", as wide as that of {band.whose}: too few runs of this kind were measured"


_PLACES = {"host": "A node's host memory does not suffice:", "disk": "The checkpoints do not fit on the disk:"}


_SMALLEST = MIB // 20
"""Bytes of the smallest pile that a line of tenths of a MiB shows as more than nothing."""


def _piles(assessment: Assessment, estimate: MemoryEstimate, width: int) -> Iterator[str]:
    """One line a pile with a bar as its share of the whole, then the whole against the capacity."""
    piles = sorted((pile for pile in estimate.piles if pile.bytes >= _SMALLEST), key=lambda pile: -pile.bytes)
    total, capacity, room = max(1, estimate.peak.device_bytes), assessment.verdict.capacity_bytes, max(10, width - 36)
    for pile in piles:
        yield _bar(pile.pile.replace("_", " "), pile.bytes, "#" * max(1, round(room * pile.bytes / total)))
    if capacity is None:
        yield _bar("whole process", total, "=" * room)
        return
    scale = room / max(total, capacity)
    inside = round(scale * min(total, capacity))
    yield _bar("whole process", total, "=" * inside + "!" * (round(scale * total) - inside))
    yield _bar("capacity", capacity, "-" * round(scale * capacity))


def _bar(name: str, size: int, bar: str) -> str:
    return f"  {name:17}{gib(size):>12}  {bar}".rstrip()


def _phases(estimate: MemoryEstimate) -> str:
    peaks = ", ".join(f"{phase.replace('_', ' ')} {gib(size)}" for phase, size in estimate.phases.items())
    return f"allocated by phase: {peaks}; between steps {gib(estimate.static_bytes)}"


def _elsewhere(estimate: MemoryEstimate) -> str:
    parameters, host, disk = estimate.parameters, estimate.host, estimate.disk
    active = "" if parameters.active == parameters.total else f" ({count(parameters.active)} active)"
    text = f"parameters: {count(parameters.total)}{active}, {count(parameters.per_rank)} kept on the worst rank"
    if host.bytes_per_node:
        text += f"; host memory: {gib(host.bytes_per_node)} a node{_of_host(host)}"
        text += " (what it has is unknown: hardware.host_memory_bytes)" if host.capacity_bytes is None else ""
    return f"{text}; a checkpoint: {gib(disk.checkpoint_bytes)}"


def _of_host(host: HostMemory) -> str:
    """The piles of a node's host memory, where there are several, the largest first."""
    sizes = {name: sum(term.bytes for term in terms) for name, terms in host.piles.items()}
    shown = sorted(((name, size) for name, size in sizes.items() if size >= _SMALLEST), key=lambda item: -item[1])
    named = [f"{name} {gib(size)}" for name, size in shown]
    return f" ({', '.join(named)})" if len(named) > 1 else ""


def _kept(hardware: HardwareSpec) -> str:
    """The part of the card that is not capacity, where that was not set by hand."""
    total, usable = hardware.memory_bytes, hardware.usable_bytes
    if total is None or usable is None or hardware.reserved_bytes == 0:
        return ""
    text = f"capacity: {gib(usable)} of the device's {gib(total)}; driver and firmware keep {gib(total - usable)}"
    if hardware.reserved_bytes is None:
        text += " (assumed: the largest share measured of any GPU; hardware.reserved_bytes sets it)"
    return text


def _target(spec: RunSpec, width: int) -> list[str]:
    """Say aloud that a run on CPU ranks was judged, and how to name the GPU that is meant."""
    if spec.hardware.device != "cpu":
        return []
    text = (
        f"device=cpu: judged for {ranks(spec)}, each with its share of the host's memory."
        " Name the GPUs that are meant, for example:"
    )
    return ["", *_wrapped(text, width), "  hardware=h100_80g cluster.gpus_per_node=8"]


def _fixes(assessment: Assessment, width: int) -> list[str]:
    if assessment.fixes:
        lines = ["", f"what would {'leave room' if assessment.verdict.fits else 'fit'}, cheapest first:"]
        for fix in assessment.fixes:
            lines += _fix(fix, width)
        return lines
    if assessment.nearest is None or assessment.verdict.fits:
        return ["", "no single change brings it nearer."] if assessment.verdict.name == "does_not_fit" else []
    lines = ["", "nothing that was tried fits; the nearest is not enough:"]
    return [*lines, *_fix(assessment.nearest, width)]


def _fix(fix: Fix, width: int) -> list[str]:
    text = f"needs {gib(fix.peak_bytes)}; costs {fix.cost}"
    indent = "      "
    return [
        f"  {' '.join(fix.overrides)}",
        *textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False),
    ]
