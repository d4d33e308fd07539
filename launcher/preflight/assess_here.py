"""One run judged with all that this machine shows of it: its rules, its data, its files and its chat template.

A single run and every point of a sweep are judged here, so that what is said of one is said of the other.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from launcher.backends import Judgement
from launcher.base.errors import ConfigError, ConfigErrors
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
    """The way in which a command judges runs; by default by formulas and shipped constants, with nothing started."""

    refined: Refinement | None = None  # Another memory engine than the formulas.
    native: Callable[[RunSpec], Judgement] | None = None  # Asks the engine's own validator.
    search: Searching | None = fixes.search  # Looks for ways out; None is not at all.
    plays: bool = True  # Whether what torch's allocator would reserve is played, which takes longer than all else.
    looking: DataLook = look.look  # Looks at data.
    python: job_python.Asking = job_python.kept  # Finds out the packages of the job's Python.
    measured: Measured | None = None  # The user's own measured runs; None takes the shipped constants.


def assess_here(spec: RunSpec, judging: Judging, *, earlier: Iterable[ConfigError] = ()) -> Assessment:
    """Judge a run and look at its data; what this machine lacks stands last among the warnings."""
    measured = judging.measured
    judged = assess(
        spec,
        earlier=earlier,
        refined=judging.refined,
        native=judging.native,
        search=judging.search,
        plays=judging.plays,
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
    """A valid run with the verdict of its rehearsal in place of the estimate's for the device (``run --rehearsed``).

    Raises ConfigErrors: There is no rehearsal of it, it decides nothing, or its packages were others.
    """
    spec, found = assessment.spec, assessment.rehearsed
    again = f"launch rehearse {words}".rstrip()
    if errors := evidence.not_rehearsed(spec):
        raise ConfigErrors(errors)
    if found is None:
        rule = "no rank of this run has been rehearsed by you, by all that decides its memory"
        raise ConfigErrors([ConfigError("--rehearsed", None, rule, [again])])
    measured = found.verdict(spec.rank_memory_bytes)
    if measured == "unknown":
        rule = f"{found.as_text(spec)}: too little was measured, or on too small a device"
        raise ConfigErrors([ConfigError("--rehearsed", None, rule, [again])])
    if others := _other_versions(spec, found):
        rule = f"it was rehearsed with other versions: {others}"
        raise ConfigErrors([ConfigError("--rehearsed", None, rule, [again])])
    return replace(assessment, verdict=_measured_verdict(assessment.verdict, found, measured))


def _other_versions(spec: RunSpec, found: Evidence) -> str:
    """Packages of the rehearsal whose versions are known to be others for the run; empty where there are none."""
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
