"""The pre-flight: all errors and warnings of a run, its memory, the verdict and the ways out, with nothing started.

First every rule is asked (``launcher.preflight.findings``). Only a run without errors is estimated, since formulas rest
on degrees that divide. The memory model gets family, strategies and backend as arguments (:func:`parts`), so that a
measured framework that we do not launch can take the backend's place. The search for ways out judges neighbours by the
same rules and by the smaller estimate ``needs``. The answer is also the document of ``launch check --json``.
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
from launcher.preflight.data import Seen
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
    # The memory estimate; None for an invalid run, and where it is not known what the run builds.
    estimate: MemoryEstimate | None = None
    verdict: Verdict = verdict.INVALID  # The verdict on its memory.
    # Changes with which it would fit, the cheapest first; only where it does not. Of a run that is tight, those with
    # which it fits for certain.
    fixes: tuple[Fix, ...] = ()
    nearest: Fix | None = None  # Where no change suffices, the one that comes nearest; it is not enough.
    as_typed: bool = True  # False where a word could not be read: ``spec`` is then not the run that was meant.
    here: tuple[ConfigError, ...] = ()  # The part of its warnings that comes from a look at this machine.
    data: Seen | None = None  # What a look at the data has found; None where nobody looked.
    # The predicted speed, of a run that does not fit as if it did; None where it is unknown.
    speed: SpeedEstimate | None = None
    speed_unknown: str | None = None  # Why it is unknown; None where it is not, and of an invalid run.
    # What was measured of a rank of it (``launch rehearse``); None where nothing was.
    rehearsed: Evidence | None = None
    saves: Saves | None = None  # What its checkpoints take; None for an invalid run.

    def refused(self, found: Iterable[ConfigError]) -> "Assessment":
        """The same run with more errors: it is invalid, and has no estimate."""
        errors = distinct((*self.errors, *found))
        return Assessment(spec=self.spec, errors=errors, warnings=self.warnings, as_typed=self.as_typed, data=self.data)


def assess(
    spec: RunSpec,
    *,
    earlier: Iterable[ConfigError] = (),
    refined: Refinement | None = None,
    native: Callable[[RunSpec], Judgement] | None = None,
    search: Searching | None = fixes.search,
    plays: bool = True,
    measured: Measured | None = None,
    stored: Stored | None = None,
) -> Assessment:
    """Judge a run.

    Args:
        spec: The run.
        earlier: Errors found while it was read; they stand before those of the rules, and alone where a whole group
            could not be read: its default stands in for it then, about which nobody has asked.
        refined: Another engine's estimate of the run, from the formula's; the ways out are searched by formula.
        native: Asks the validator of the run's own engine, where no rule of ours has found an error.
        search: How to look for ways out where the run needs more than there is; None is not at all.
        plays: Whether what torch's allocator would reserve is played; else it is said to be what the run needs.
        measured: Gives the constant of the user's own measured runs; None takes the shipped one.
        stored: Gives what was measured of the cluster's storage; None asks for nothing.
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
    formula = estimated(spec, plays=plays)
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
    """The answer about a valid run that builds an unknown model: no figure of another model stands in."""
    judged = verdict.unknown(spec)
    return Assessment(
        spec=spec,
        warnings=distinct((*warnings(spec), *judgement.warnings)),
        verdict=judged,
        speed_unknown=pricing.predicted(spec, parts, judged).unknown,
    )


def estimated(spec: RunSpec, *, plays: bool = True) -> MemoryEstimate:
    """The memory estimate of a valid run; ``plays`` as for :func:`assess`."""
    return estimate(spec, **parts(spec), plays=plays)


def unmeasured(spec: RunSpec) -> tuple[str, ...]:
    """The parts of a run's mode that nothing measured backs."""
    backend = backends.of(spec)
    return modes.unmeasured(spec, backend.framework, backend.mode(spec))


def going_on(spec: RunSpec) -> RunSpec:
    """A run as it goes on from a checkpoint of its own, so that its load is predicted with that of the checkpoint."""
    return spec if spec.save.load is not None else edit.changed(spec, "save.load", "checkpoints")


def broken_down(spec: RunSpec, estimate: MemoryEstimate) -> Breakdown:
    """The piles of every phase and of every pipeline stage of a valid run."""
    return breakdown(rank_terms(spec, **parts(spec)), estimate)


def terms_of(spec: RunSpec) -> tuple[RankTerms, ...]:
    """All terms of one rank of each pipeline stage of a valid run."""
    return rank_terms(spec, **parts(spec))


def ways_out(spec: RunSpec, adjusted: Adjusted | None = None, measured: Measured | None = None) -> fixes.Search:
    """Changes with which a run that ran out of memory fits for certain, or else most likely, the cheapest first.

    None of them trains other parameters than the run has begun to train. ``adjusted`` puts what was measured of the run
    into the estimates of its neighbours.
    """
    own = needs(spec, **parts(spec), adjusted=adjusted)
    speed = pricing.predicted(spec, parts, verdict.judge(spec, own), measured).speed
    return pricing.priced(search_safely(spec, own, adjusted), spec, speed, parts, measured)


def search_safely(spec: RunSpec, own: Needs, adjusted: Adjusted | None) -> fixes.Search:
    """Changes with which the whole error band lies below the capacity, or else the middle of it."""
    if verdict.judge(spec, own, safely=True).excess_bytes == 0:
        return fixes.Search()
    found = fixes.search(spec, _judge(spec, own, safely=True, adjusted=adjusted), TRAINS_OTHERS)
    if found.found or not verdict.judge(spec, own).excess_bytes:
        return found
    return fixes.search(spec, _judge(spec, own, adjusted=adjusted), TRAINS_OTHERS)


def parts(spec: RunSpec) -> Parts:
    """Arguments of the memory model for a run: family, strategies and backend, so that it looks nothing up."""
    return {"family": families.of(spec.model), "strategies": modules_of("strategies"), "backend": backends.of(spec)}


def _ways_out(spec: RunSpec, judged: Verdict, formula: Needs, search: Searching) -> fixes.Search:
    """Changes that make a run fit; for one that is tight those that are safe, if there are any."""
    if judged.name == "tight":
        found = search(spec, _judge(spec, formula, safely=True))
        if found.found:
            return replace(found, nearest=None)
    return search(spec, _judge(spec, formula)) if judged.excess_bytes else fixes.Search()


def _judge(start: RunSpec, formula: Needs, *, safely: bool = False, adjusted: Adjusted | None = None) -> NeighbourJudge:
    """Judges the neighbours of a valid run, and the run itself, whose needs are known, by formula or ``adjusted``."""

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
    """The judgement of the run's own engine."""
    return backends.of(spec).native(spec)


def validator(spec: RunSpec) -> str | None:
    """The program whose own validator :func:`judge` asks about a run; None where nothing is started for it."""
    return None if spec.script is not None else backends.of(spec).profile.validator


def judge_all(specs: Sequence[RunSpec]) -> tuple[Judgement, ...]:
    """The judgements of :func:`judge` on several runs; a backend that has ``natives`` is asked for its own at once."""
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
    """The document of a configuration that is wrong: its errors, and null for the rest."""
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
    """The degrees of the world and the micro-batches of a step."""
    degrees = {name: getattr(spec.parallel, name) for name in ("tensor", "pipeline", "context", "expert")}
    accumulation = spec.gradient_accumulation
    return {"gpus": spec.gpus, "data": spec.data_degree, **degrees, "gradient_accumulation": accumulation}
