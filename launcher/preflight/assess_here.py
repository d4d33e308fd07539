"""Judges one run with everything that this machine can see of it: rules, data, files and chat template.

A single run and every point of a sweep are judged here, so that both get the same findings.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from launcher.backends import Judgement
from launcher.base.errors import ConfigError, ConfigErrors, raise_any
from launcher.base.frozen import dataclass
from launcher.data import look
from launcher.data.epoch import DataLook
from launcher.job import versions
from launcher.preflight import data, evidence, fixes, job_python, saving
from launcher.preflight.assess import Assessment, Refinement, assess
from launcher.preflight.evidence import Evidence
from launcher.preflight.fixes import Searching
from launcher.preflight.measured.known import Measured
from launcher.preflight.this_machine import not_seen_here, without_template
from launcher.preflight.verdict import Shortage, Verdict, VerdictName
from launcher.spec import RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """How a command judges runs; by default with formulas and shipped constants, without starting anything."""

    refined: Refinement | None = None  # A memory engine that replaces the formulas.
    native: Callable[[RunSpec], Judgement] | None = None  # Runs the engine's own validator.
    search: Searching | None = fixes.search  # Searches for ways out; None skips the search.
    simulate: bool = True  # Whether to simulate torch's allocator, which takes longer than everything else.
    looking: DataLook = look.look  # Looks at data.
    python: job_python.Asking = job_python.kept  # Finds the packages of the job's Python.
    measured: Measured | None = None  # The user's own measured runs; None uses the shipped constants.


def assess_here(spec: RunSpec, judging: Judging, *, earlier: Iterable[ConfigError] = ()) -> Assessment:
    """Judge a run and look at its data; warnings about this machine come last."""
    measured = judging.measured
    judged = assess(
        spec,
        earlier=earlier,
        refined=judging.refined,
        native=judging.native,
        search=judging.search,
        simulate=judging.simulate,
        measured=measured,
        stored=None if measured is None else measured.storage,
    )
    found = data.seen(spec, judging.looking)
    if found.errors:
        judged = judged.refused(found.errors)
    disk = () if judged.estimate is None else tuple(saving.too_large_here(spec, judged.estimate.disk))
    unpacked = job_python.warnings(spec, judging.python)
    here = (*disk, *unpacked, *not_seen_here(spec), *without_template(spec), *found.warnings)
    return replace(judged, data=found, warnings=(*judged.warnings, *here), here=here)


def judge_by_rehearsal(assessment: Assessment, words: str) -> Assessment:
    """The assessment with the rehearsal's verdict on the device instead of the estimate's (``run --rehearsed``).

    Raises ConfigErrors: The run has no rehearsal, it is inconclusive, or it used other package versions.
    """
    spec, found = assessment.spec, assessment.rehearsed
    again = f"launch rehearse {words}".rstrip()
    raise_any(evidence.not_rehearsed(spec))
    if found is None:
        rule = "you have not rehearsed this run, or any other with the same memory-relevant settings"
        raise ConfigErrors([ConfigError("--rehearsed", None, rule, [again])])
    measured = found.verdict(spec.rank_memory_bytes)
    if measured == "unknown":
        rule = f"{found.as_text(spec)}: too little was measured, or the device was too small"
        raise ConfigErrors([ConfigError("--rehearsed", None, rule, [again])])
    if others := _other_versions(spec, found):
        rule = f"it was rehearsed with other package versions: {others}"
        raise ConfigErrors([ConfigError("--rehearsed", None, rule, [again])])
    return replace(assessment, verdict=_measured_verdict(assessment.verdict, found, measured))


def _other_versions(spec: RunSpec, found: Evidence) -> str:
    """Packages known to have another version now than in the rehearsal, in words; empty if there are none."""
    there = job_python.kept(spec)
    packages = versions.here().packages if there is None else there.packages
    pairs = ((name, version, packages.get(name)) for name, version in found.versions.items())
    return ", ".join(f"{name} {then}, now {now}" for name, then, now in pairs if now is not None and now != then)


def _measured_verdict(estimated: Verdict, found: Evidence, measured: evidence.Measured) -> Verdict:
    shortages = tuple(short for short in estimated.shortages if short.place != "device")
    used = found.used_bytes if found.used_bytes is not None else estimated.used_bytes
    capacity = estimated.capacity_bytes
    if measured == "does_not_fit":
        short = Shortage(place="device", used_bytes=used or 0, capacity_bytes=capacity or 0)
        shortages = (short, *shortages)
    name: VerdictName = "does_not_fit" if shortages else "tight" if measured == "tight" else "fits"
    return Verdict(name=name, used_bytes=used, capacity_bytes=capacity, shortages=shortages)
