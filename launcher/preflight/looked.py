"""One run judged with all that this machine shows of it: its rules, its data, its files and its chat template.

A single run and every point of a sweep are judged here, so that what is said of one is said of the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from launcher.base.errors import ConfigError
from launcher.preflight import assess, data, job_python, saving
from launcher.preflight.assess import Assessment
from launcher.preflight.judging import Judging
from launcher.preflight.this_machine import not_seen_here, without_template
from launcher.spec import RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The answer about a run, and the part of its warnings that comes from a look at this machine."""

    assessment: Assessment
    here: tuple[ConfigError, ...]


def assessed(spec: RunSpec, judging: Judging, *, earlier: Iterable[ConfigError] = ()) -> Looked:
    """Judge a run and look at its data; what this machine lacks stands last among the warnings.

    Args:
        spec: The run.
        judging: How it is judged.
        earlier: As :func:`launcher.preflight.assess.assess` takes it.
    """
    measured = judging.measured
    judged = assess.assess(
        spec,
        earlier=earlier,
        refined=judging.refined,
        native=judging.native,
        search=judging.search,
        measured=measured,
        stored=None if measured is None else measured.storage,
    )
    found = data.seen(spec, judging.looking)
    if found.errors:
        judged = judged.refused(found.errors)
    disk = () if judged.estimate is None else tuple(saving.too_large_here(spec, judged.estimate.disk))
    unpacked = job_python.warnings(spec, judging.python)
    here = (*disk, *unpacked, *not_seen_here(spec), *without_template(spec), *found.warnings)
    return Looked(assessment=replace(judged, data=found, warnings=(*judged.warnings, *here)), here=here)
