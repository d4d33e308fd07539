"""``check --engine trace``: memory from the worker's own code, run with fake tensors in a subprocess.

Planning imports no torch, so the trace is a program (``python -m launcher.worker.trace``) that reads a ``spec.json``
and writes a report. Its allocated, needed and reserved bytes, phases and piles replace those of the formulas. What fake
tensors cannot show still comes from the formulas: libraries' workspaces, context, communicators, host memory and disk,
and the width of the error band, which is scaled to the trace's numbers.
"""

import json
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import cast

from launcher import backends
from launcher.base import files, package
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.estimate.memory.moments import PHASES, Phase
from launcher.estimate.memory.result import MemoryEstimate, Peak, PileBytes, RankPeak
from launcher.estimate.memory.terms import OUTSIDE_PILES, Pile
from launcher.spec import RunSpec
from launcher.spec.parse import to_dict

_TIMEOUT_S = 600
_SOURCE = "trace of the worker under fake tensors; replay through a model of CUDACachingAllocator"
_NO_TORCH = "the trace needs torch, which is not installed for this Python"
_CACHE_PILES = ("workspace",)
"""Piles that libraries take from torch's allocator unseen by fake tensors; the formula's bytes are added."""


def traced(
    spec: RunSpec, formula: MemoryEstimate, *, python: str = sys.executable, rank: int | None = None
) -> MemoryEstimate:
    """The estimate with one rank's trace replacing the formula, by default the rank that needs the most.

    Host memory, disk, the number of parameters, libraries' workspaces, context and communicators stay the formula's.
    Raises ConfigErrors if the run cannot be traced, or if the interpreter ``python`` lacks torch.
    """
    return merged(document(spec, python=python, rank=rank), formula)


def document(spec: RunSpec, *, python: str = sys.executable, rank: int | None = None) -> JsonObject:
    """The report of ``launcher.worker.trace``. Raises ConfigErrors as :func:`traced` does."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "spec.json", Path(folder) / "trace.json"
        source.write_text(json.dumps(to_dict(spec)))
        chosen = str(backends.of(spec).fullest_rank(spec) if rank is None else rank)
        words = ("--spec", str(source), "--out", str(target), "--rank", chosen)
        done = package.run_module("launcher.worker.trace", *words, python=python, timeout_s=_TIMEOUT_S)
        content: JsonObject = files.load_json(target) if target.exists() else {}
    if done.returncode != 0:
        rule = content.get("error") or _reason(done.stderr)
        ways = [package.install(package.TRAINING)] if rule == _NO_TORCH else []
        raise ConfigErrors([ConfigError("--engine", "trace", rule, [*ways, "--engine formula"])])
    return content


def _reason(errors: str) -> str:
    """The error in the output of a process that wrote no report; libraries may print more after it as they exit."""
    if "No module named 'torch'" in errors:
        return _NO_TORCH
    lines = [
        line.strip() for line in errors.splitlines() if re.match(r"(\[rank\d+\]:\s*)?[\w.]*(Error|Exception)\b", line)
    ]
    return f"the trace failed: {lines[-1] if lines else 'no message'}"


def merged(report: JsonObject, formula: MemoryEstimate) -> MemoryEstimate:
    """The formula's estimate with the trace report's numbers in place of its own."""
    library = [pile for pile in formula.piles if pile.pile in _CACHE_PILES]
    outside = [pile for pile in formula.piles if pile.pile in OUTSIDE_PILES]
    extra = sum(pile.bytes for pile in library)
    allocated, needed, reserved = (int(report[f"{name}_bytes"]) + extra for name in ("allocated", "needed", "reserved"))
    lost = [_pile("fragmentation", reserved - allocated)] if reserved > allocated else []
    piles = (*_piles(report, allocated - extra), *library, *outside, *lost)
    device = sum(pile.bytes for pile in piles)
    static = int(report["static_bytes"]) + extra
    return replace(
        formula,
        static_bytes=static,
        peak=_peak(formula.peak, report["phase"], allocated, needed, reserved, device),
        phases=_phases(report["phases"], formula, extra),
        piles=piles,
        ranks=(RankPeak(stage=0, static_bytes=static, allocated_bytes=allocated, reserved_bytes=reserved),),
    )


def _peak(formula: Peak, phase: Phase, allocated: int, needed: int, reserved: int, device: int) -> Peak:
    """The trace's peak, with the formula's error band scaled to it."""
    scale = allocated / formula.allocated_bytes
    return Peak(
        allocated_bytes=allocated,
        needed_bytes=needed,
        reserved_bytes=reserved,
        device_bytes=device,
        low_bytes=min(allocated, int(formula.low_bytes * scale)),
        high_bytes=max(needed, int(formula.high_bytes * scale)),
        phase=phase,
        stage=0,
    )


def _phases(traced_phases: dict[str, int], formula: MemoryEstimate, extra: int) -> dict[Phase, int]:
    """Peaks by phase; saving is not traced, so its phase stays the formula's."""
    return {
        phase: traced_phases[phase] + extra if phase in traced_phases else formula.phases[phase] for phase in PHASES
    }


def _piles(report: JsonObject, allocated: int) -> list[PileBytes]:
    """The report's piles, adjusted so that they sum to the allocated bytes."""
    found = {cast("Pile", name): int(size) for name, size in report["piles"].items()}
    largest = max(found, key=lambda pile: found[pile])
    found[largest] += allocated - sum(found.values())  # Extrapolated piles are rounded one by one.
    return [_pile(pile, size) for pile, size in found.items()]


def _pile(pile: Pile, size: int) -> PileBytes:
    return PileBytes(pile=pile, bytes=size, formula="traced", source=_SOURCE)
