"""The pre-flight check: a run's errors, warnings, memory, verdict and ways out, without starting anything.

Every rule runs first (``launcher.preflight.findings``). Only a run without errors is estimated, because the formulas
assume degrees that divide evenly. The memory model takes family, strategies and backend as arguments (:func:`parts`),
so that a measured framework that launch does not run can stand in for the backend. The search for ways out judges
neighbouring runs by the same rules and by ``needs``, the smaller estimate. ``launch check --json`` prints the answer.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from launcher import backends
from launcher.backends import Judgement
from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.estimate import families
from launcher.estimate.memory import modes
from launcher.estimate.memory.breakdown import Breakdown, breakdown
from launcher.estimate.memory.estimate import Adjusted, RankTerms, estimate, needs, needs_within, rank_terms
from launcher.estimate.memory.result import MemoryEstimate, Needs
from launcher.estimate.rank.model import Parts
from launcher.estimate.speed.result import SpeedEstimate
from launcher.preflight import fixes, pricing, saving, verdict
from launcher.preflight.changes import TRAINS_OTHERS
from launcher.preflight.data import DataFindings
from launcher.preflight.evidence import Evidence
from launcher.preflight.findings import broken_by_change, distinct, errors, modules_of, warnings
from launcher.preflight.fixes import Fix, NeighbourJudge, Searching
from launcher.preflight.pricing import Measured
from launcher.preflight.saving import Saves, Stored
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec, edit

type Refinement = Callable[[RunSpec, MemoryEstimate], MemoryEstimate]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The pre-flight's answer about one run."""

    spec: RunSpec  # The run.
    errors: tuple[ConfigError, ...] = ()  # All errors; the rest is empty where there are any.
    warnings: tuple[ConfigError, ...] = ()  # Pitfalls of a valid run.
    estimate: MemoryEstimate | None = None  # The memory estimate; None for an invalid run or an unknown model.
    verdict: Verdict = verdict.INVALID  # The verdict on its memory.
    # Changes that make a run fit, the cheapest first; for a tight run, changes after which it fits for certain. Empty
    # for a run that fits.
    fixes: tuple[Fix, ...] = ()
    nearest: Fix | None = None  # If no change suffices, the one that comes closest.
    as_typed: bool = True  # False if a group could not be read: ``spec`` is then not the run that the user meant.
    here: tuple[ConfigError, ...] = ()  # Those of its warnings that depend on this machine.
    data: DataFindings | None = None  # What a look at the data found; None if nobody looked.
    # The predicted speed, for a run that does not fit as if it did; None if unknown.
    speed: SpeedEstimate | None = None
    speed_unknown: str | None = None  # Why the speed is unknown; None if it is known, or if the run is invalid.
    rehearsed: Evidence | None = None  # The measurement of one of its ranks (``launch rehearse``), if there is one.
    saves: Saves | None = None  # Size and time of its checkpoints; None for an invalid run.

    def refused(self, found: Iterable[ConfigError]) -> "Assessment":
        """The assessment with more errors, which make the run invalid and remove its estimate."""
        errors = distinct((*self.errors, *found))
        return Assessment(spec=self.spec, errors=errors, warnings=self.warnings, as_typed=self.as_typed, data=self.data)


def assess(
    spec: RunSpec,
    *,
    earlier: Iterable[ConfigError] = (),
    refined: Refinement | None = None,
    native: Callable[[RunSpec], Judgement] | None = None,
    search: Searching | None = fixes.search,
    simulate: bool = True,
    measured: Measured | None = None,
    stored: Stored | None = None,
) -> Assessment:
    """Judge a run: rules, memory, verdict, ways out, speed and checkpoints.

    Args:
        spec: The run.
        earlier: Errors found while reading it. They come before those of the rules. If a whole group could not be read,
            they are the only errors: the rules would judge the default that stands in for the group.
        refined: Replaces the formula's estimate by another engine's; the search for ways out keeps the formula.
        native: Runs the engine's own validator, once no rule of ours has found an error.
        search: Searches for ways out if the run does not fit; None skips the search.
        simulate: Whether to simulate torch's allocator for the reserved bytes; otherwise they equal the needed bytes.
        measured: Gives the constant of the user's own measured runs; None uses the shipped one.
        stored: Gives the measured speed of the cluster's storage; None if there is no measurement to use.
    """
    unread = tuple(earlier)
    stands_in = any(hasattr(spec, error.path) for error in unread)
    found = distinct(unread if stands_in else (*unread, *errors(spec)))
    judgement = Judgement() if found or native is None else native(spec)
    found = (*found, *judgement.errors)
    if found:
        return _invalid(spec, found, judgement, as_typed=not unread)
    if spec.judges_no_model:
        return _unknown(spec, judgement)
    formula = estimated(spec, simulate=simulate)
    estimate = formula if refined is None else refined(spec, formula)
    judged = verdict.judge(spec, estimate)
    speed = pricing.predicted(spec, parts, judged, measured)
    ways_out = fixes.Search() if search is None else _ways_out(spec, judged, formula, search)
    ways_out = pricing.priced(ways_out, spec, speed.speed, parts, measured)
    saves = saving.predicted(spec, estimate.disk, stored)
    remarks = (*verdict.remarks(spec, estimate), *saving.too_late(spec, speed.speed, saves))
    return Assessment(
        spec=spec,
        warnings=distinct((*warnings(spec), *judgement.warnings, *remarks)),
        estimate=estimate,
        verdict=judged,
        fixes=ways_out.found,
        nearest=ways_out.nearest,
        speed=speed.speed,
        speed_unknown=speed.unknown,
        saves=saves,
    )


def _invalid(spec: RunSpec, found: tuple[ConfigError, ...], judgement: Judgement, *, as_typed: bool) -> Assessment:
    pitfalls = (*warnings(spec), *judgement.warnings) if as_typed else ()
    return Assessment(spec=spec, errors=found, warnings=pitfalls, as_typed=as_typed)


def _unknown(spec: RunSpec, judgement: Judgement) -> Assessment:
    """The assessment of a valid run that builds an unknown model, without figures of any other model."""
    judged = verdict.unknown(spec)
    return Assessment(
        spec=spec,
        warnings=distinct((*warnings(spec), *judgement.warnings)),
        verdict=judged,
        speed_unknown=pricing.predicted(spec, parts, judged).unknown,
    )


def estimated(spec: RunSpec, *, simulate: bool = True) -> MemoryEstimate:
    """The memory estimate of a valid run; ``simulate`` as for :func:`assess`."""
    return estimate(spec, **parts(spec), simulate=simulate)


def unmeasured(spec: RunSpec) -> tuple[str, ...]:
    """The parts of a run's mode that no measurement backs."""
    backend = backends.of(spec)
    return modes.unmeasured(spec, backend.framework, backend.mode(spec))


def going_on(spec: RunSpec) -> RunSpec:
    """The run resumed from its own checkpoint, so that the estimate includes loading it."""
    return spec if spec.save.load is not None else edit.changed(spec, "save.load", "checkpoints")


def broken_down(spec: RunSpec, estimate: MemoryEstimate) -> Breakdown:
    """The piles of every phase and of every pipeline stage of a valid run."""
    return breakdown(rank_terms(spec, **parts(spec)), estimate)


def terms_of(spec: RunSpec) -> tuple[RankTerms, ...]:
    """All terms of one rank of each pipeline stage of a valid run."""
    return rank_terms(spec, **parts(spec))


def ways_out(spec: RunSpec, adjusted: Adjusted | None = None, measured: Measured | None = None) -> fixes.Search:
    """Changes after which a run that ran out of memory fits for certain, or else most likely; the cheapest first.

    None of them changes which parameters are trained. ``adjusted`` corrects the estimates of neighbouring runs by what
    was measured in this one.
    """
    own = needs(spec, **parts(spec), adjusted=adjusted)
    speed = pricing.predicted(spec, parts, verdict.judge(spec, own), measured).speed
    return pricing.priced(search_safely(spec, own, adjusted), spec, speed, parts, measured)


def search_safely(spec: RunSpec, own: Needs, adjusted: Adjusted | None) -> fixes.Search:
    """Changes that bring the whole error band below the capacity, or failing that its middle."""
    if verdict.judge(spec, own, safely=True).excess_bytes == 0:
        return fixes.Search()
    found = fixes.search(spec, _judge(spec, own, safely=True, adjusted=adjusted), TRAINS_OTHERS)
    if found.found or not verdict.judge(spec, own).excess_bytes:
        return found
    return fixes.search(spec, _judge(spec, own, adjusted=adjusted), TRAINS_OTHERS)


def parts(spec: RunSpec) -> Parts:
    """Family, strategies and backend of a run, the arguments with which the memory model needs no lookups."""
    return {"family": families.of(spec.model), "strategies": modules_of("strategies"), "backend": backends.of(spec)}


def _ways_out(spec: RunSpec, judged: Verdict, formula: Needs, search: Searching) -> fixes.Search:
    """Changes that make a run fit; for a tight run, safe ones if there are any."""
    if judged.name == "tight":
        found = search(spec, _judge(spec, formula, safely=True))
        if found.found:
            return replace(found, nearest=None)
    return search(spec, _judge(spec, formula)) if judged.excess_bytes else fixes.Search()


def _judge(start: RunSpec, formula: Needs, *, safely: bool = False, adjusted: Adjusted | None = None) -> NeighbourJudge:
    """A judge of the valid run ``start``, whose needs are known, and of its neighbours, by formula or ``adjusted``."""

    def judged(spec: RunSpec, *, roughly: bool = False) -> Verdict | None:
        if spec is start:
            return verdict.judge(spec, formula, safely=safely)
        if next(broken_by_change(spec), None) is not None:
            return None
        capacity = spec.rank_memory_bytes
        if not roughly or capacity is None or adjusted is not None:
            return verdict.judge(spec, needs(spec, **parts(spec), adjusted=adjusted), safely=safely)
        found = needs_within(spec, capacity, **parts(spec))
        return verdict.beyond(capacity) if found is None else verdict.judge(spec, found, safely=safely)

    return judged


def judge(spec: RunSpec) -> Judgement:
    """The judgement of the engine's own validator."""
    return backends.of(spec).native(spec)


def validator(spec: RunSpec) -> str | None:
    """The program whose validator :func:`judge` runs; None if it starts no program for this run."""
    return None if spec.script is not None else backends.of(spec).profile.validator


def judge_all(specs: Sequence[RunSpec]) -> tuple[Judgement, ...]:
    """The judgements of several runs by their engines; a backend with ``natives`` judges all of its runs at once."""
    found: dict[str, list[RunSpec]] = {}
    for spec in specs:
        found.setdefault(spec.backend.name, []).append(spec)
    judged: dict[str, Iterator[Judgement]] = {}
    for name, own in found.items():
        backend = backends.of(own[0])
        together = getattr(backend, "natives", None)
        judged[name] = iter(map(backend.native, own) if together is None else together(own))
    return tuple(next(judged[spec.backend.name]) for spec in specs)


_FIGURES = ("parameters", "static_bytes", "peak", "phases", "piles", "ranks", "host", "disk", "unmeasured")
_NOTHING = dict.fromkeys(("spec_hash", "gpu", "world", *_FIGURES, "fixes", "speed", "data", "rehearsed"))


def invalid_as_json(errors: Iterable[ConfigError], warnings: Iterable[ConfigError] = ()) -> JsonObject:
    """The document of an invalid configuration: its errors and warnings, and null for the rest."""
    return {
        "schema": 1,
        "verdict": "invalid",
        "warnings": [warning.as_dict() for warning in warnings],
        "errors": [error.as_dict() for error in errors],
        **_NOTHING,
    }


def as_json(assessment: Assessment) -> JsonObject:
    """The document of ``launch check --json`` (docs/contract/documents.md)."""
    spec, estimate = assessment.spec, assessment.estimate
    if assessment.errors:
        return invalid_as_json(assessment.errors, assessment.warnings)
    return {
        "schema": 1,
        "verdict": assessment.verdict.name,
        "spec_hash": spec.hash,
        "warnings": [warning.as_dict() for warning in assessment.warnings],
        "errors": [],
        "gpu": {"name": spec.hardware.name, "memory_bytes": spec.rank_memory_bytes},
        "world": world_as_json(spec),
        **(dict.fromkeys(_FIGURES) if estimate is None else estimate.as_dict()),
        "disk": None if assessment.saves is None else assessment.saves.as_dict(),
        "unmeasured": None if estimate is None else list(estimate.unmeasured),
        "fixes": [fix.as_dict() for fix in assessment.fixes],
        "speed": None if assessment.speed is None else assessment.speed.as_dict(spec),
        "data": None if assessment.data is None else assessment.data.as_dict(),
        "rehearsed": None if assessment.rehearsed is None else assessment.rehearsed.as_dict(spec),
    }


def world_as_json(spec: RunSpec) -> dict[str, int]:
    """The parallel degrees and the number of micro-batches in a step."""
    degrees = {name: getattr(spec.parallel, name) for name in ("tensor", "pipeline", "context", "expert")}
    accumulation = spec.gradient_accumulation
    return {"gpus": spec.gpus, "data": spec.data_degree, **degrees, "gradient_accumulation": accumulation}
