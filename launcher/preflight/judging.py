"""How a run is judged: the memory engine, the validator, the search for ways out, and what may be looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from launcher.backends import Judgement
from launcher.data import look
from launcher.preflight import fixes, job_python
from launcher.preflight.assess import Refinement
from launcher.preflight.data import Looking
from launcher.preflight.fixes import Searching
from launcher.preflight.measured.known import Measured
from launcher.spec import RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """How runs of one command are judged; as it is, by formulas and shipped constants, with nothing started.

    Attributes:
        refined: Another memory engine than the formulas.
        native: Asks the engine's own validator.
        search: How to look for ways out; None is not at all.
        looking: How to look at data.
        python: How the packages of the job's Python are found out.
        measured: The user's own measured runs; None takes the shipped constants.
    """

    refined: Refinement | None = None
    native: Callable[[RunSpec], Judgement] | None = None
    search: Searching | None = fixes.search
    looking: Looking = look.look
    python: job_python.Asking = job_python.kept
    measured: Measured | None = None
