"""One run judged with all that this machine shows of it: its rules, its data, its files and its chat template.

A single run and every point of a sweep are judged here, so that what is said of one is said of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from launcher.backends import Judgement
from launcher.base.errors import ConfigError
from launcher.preflight import assess, data, fixes, job_python, saving
from launcher.preflight.assess import Assessment, Refinement
from launcher.preflight.data import Looking
from launcher.preflight.fixes import Searching
from launcher.preflight.measured.known import Measured
from launcher.preflight.this_machine import not_seen_here, without_template
from launcher.spec import RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The answer about a run, and the part of its warnings that comes from a look at this machine."""

    assessment: Assessment
    here: tuple[ConfigError, ...]


def assessed(
    spec: RunSpec,
    *,
    looking: Looking,
    earlier: Iterable[ConfigError] = (),
    refined: Refinement | None = None,
    native: Callable[[RunSpec], Judgement] | None = None,
    search: Searching | None = fixes.search,
    python: job_python.Asking = job_python.kept,
    measured: Measured | None = None,
) -> Looked:
    """Judge a run and look at its data; what this machine lacks stands last among the warnings.

    Args:
        spec: The run.
        looking: How to look at data.
        earlier: As :func:`launcher.preflight.assess.assess` takes it, and so are the others.
        refined: Another memory engine than the formulas.
        native: Asks the engine's own validator.
        search: How to look for ways out; None is not at all.
        python: How the packages of the job's Python are found out; as it is, nothing is started for it.
        measured: The user's own measured runs; None takes the shipped constants.
    """
    stored = None if measured is None else measured.storage
    how: dict[str, Any] = {"native": native, "search": search, "measured": measured, "stored": stored}
    judged = assess.assess(spec, earlier=earlier, refined=refined, **how)
    found = data.seen(spec, looking)
    if found.errors:
        judged = judged.refused(found.errors)
    disk = () if judged.estimate is None else tuple(saving.too_large_here(spec, judged.estimate.disk))
    here = (*disk, *job_python.warnings(spec, python), *not_seen_here(spec), *without_template(spec), *found.warnings)
    return Looked(assessment=replace(judged, data=found, warnings=(*judged.warnings, *here)), here=here)
