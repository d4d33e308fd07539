"""A sweep: every point is judged before anything starts, and a folder records the outcome of each.

A point is composed from the words that all points share plus its own overrides. ``sweep.json`` keeps the words as
typed, so that ``launch resume`` reads the same axes again, and every point with its verdict, including skipped points
and why they were skipped.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from pathlib import Path

from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors, SubmitError
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.machine import Machine
from launcher.base.units import gib
from launcher.config import synonyms
from launcher.config.axes import Axes, read_axes
from launcher.config.catalog import Catalog
from launcher.config.recipes import literal
from launcher.config.request import request
from launcher.data import look
from launcher.data.epoch import DataLook
from launcher.planner.best import Searches, chosen, none_fits, remarks
from launcher.planner.layouts import Plan
from launcher.planner.planning import plan
from launcher.planner.question import Question
from launcher.preflight.assess import Assessment
from launcher.preflight.assess_here import Judging, assess_here
from launcher.preflight.measured.known import Measured
from launcher.preflight.this_machine import obstacles
from launcher.rundir import contents, loading, results, run_names, signature, state, status
from launcher.rundir.record import RecordNotWritten, directory_for, numbered, taken
from launcher.spec import RunSpec, secrecy
from launcher.sweeping.point import Point, invalid, read_point

MEASUREMENT = "measurement"
"""The key of ``sweep.json`` that marks a sweep as a measurement of layouts, and holds its question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The space of a sweep, and everything needed to judge its points."""

    words: tuple[str, ...]  # The command line, as typed.
    axes: Axes  # The command line as fixed words and swept axes.
    settings: RunSpec  # Its ``sweep``, ``run`` and ``cluster`` apply to the whole sweep.
    catalog: Catalog
    facts: Machine  # This machine.
    force: bool  # True to also run points that do not fit.
    trusted: bool = False  # True if points may load foreign checkpoints that run code when read.
    measured: Measured | None = field(default=None, compare=False)  # The user's own; None uses the shipped constants.
    searches: Searches | None = field(default=None, compare=False)  # Finds layouts if the words say ``plan=best``.
    looking: DataLook = field(default_factory=look.SurveyCache, compare=False)  # Points that share data look once.
    # Remarks on words, data and files of valid points, each with its points; filled as points are judged.
    remarks: dict[str, list[str]] = field(default_factory=dict, compare=False)
    meant: frozenset[str] = frozenset()  # Keys whose warnings are suppressed, because the points set them on purpose.
    measures: JsonObject | None = None  # The record of a measurement of layouts (``launcher.sweeping.measurement``).

    def point(
        self, number: int, overrides: Sequence[str], directory: Path | None = None
    ) -> tuple[Point, Assessment | None]:
        """Compose and judge one point, with its own best layout for ``plan=best``, to run in ``directory``."""
        name = f"{number:03d}"
        if self.searches is None:
            return self._judged(name, overrides, directory)
        try:
            found = self.searches.plan([*self.axes.fixed, *overrides])
        except ConfigErrors as error:
            return invalid(name, overrides, error.errors), None
        layout = chosen(found)
        point, assessment = self._judged(name, (*overrides, *layout), directory)
        if assessment is not None:
            self._note(name, (f"launch: {line}" for line in remarks(found)))
        if not found.layouts and not point.kept:
            point = replace(point, reason=f"{none_fits(found)}; as typed: {point.reason}")
        return replace(point, layout=layout), assessment

    def _judged(self, name: str, overrides: Sequence[str], directory: Path | None) -> tuple[Point, Assessment | None]:
        placed = () if directory is None else (f"run.directory={literal(str(directory / name))}",)
        found = request([*self.axes.fixed, *overrides, *placed], facts=self.facts, catalog=self.catalog)
        if found.spec is None:
            return invalid(name, overrides, found.errors), None
        # No search for ways out: for a thousand points it would take most of the time.
        loaded = loading.resolved(found.spec, self.catalog.folder)
        earlier = (*found.errors, *loaded.errors)
        judging = Judging(search=None, simulate=directory is not None, looking=self.looking, measured=self.measured)
        assessment = assess_here(loaded.spec, judging, earlier=earlier)
        errors = assessment.errors
        if not errors and directory is not None:
            untrusted = () if self.trusted else loading.foreign_pickles(loaded.spec)
            errors = (*obstacles(loaded.spec, self.facts), *untrusted)
        if errors:
            return invalid(name, overrides, errors), None
        warnings = (each for each in (*found.warnings, *assessment.here) if each.path not in self.meant)
        self._note(name, (*(f"launch: {line}" for line in loaded.said), *map(_warning_text, warnings)))
        verdict, estimate, speed = assessment.verdict, assessment.estimate, assessment.speed
        short = verdict.shortages
        needs = (f"{each.place} needs {gib(each.used_bytes)} of {gib(each.capacity_bytes)}" for each in short)
        point = Point(
            id=name,
            overrides=tuple(overrides),
            verdict=verdict.name,
            reason=None if verdict.may_start or self.force else ", ".join(needs),
            predicted_bytes=None if estimate is None else estimate.peak.allocated_bytes,
            needed_bytes=verdict.used_bytes,
            largest_pile=None if estimate is None else (estimate.largest_pile.pile, estimate.largest_pile.bytes),
            predicted_tokens_per_second_per_gpu=speed.tokens_per_second_per_gpu if speed and verdict.fits else None,
        )
        return point, assessment

    def _note(self, name: str, remarks: Iterable[str]) -> None:
        for remark in remarks:
            self.remarks.setdefault(remark, []).append(name)


def _warning_text(finding: ConfigError) -> str:
    ways = f"; try {' or '.join(finding.way_out)}" if finding.way_out else ""
    return f"warning: {finding.where}: {finding.rule}{ways}"


def read(
    words: Sequence[str],
    *,
    catalog: Catalog,
    facts: Machine,
    force: bool,
    trusted: bool = False,
    measured: Measured | None = None,
    search: Callable[[Question], Plan] = plan,
) -> Sweep:
    """The sweep of a command line; ``search`` plans ``plan=best``. Raises ConfigErrors for a wrong word."""
    plain, has_best = synonyms.without_best(words)
    axes = read_axes(plain, catalog)
    found = request([*axes.fixed, *axes.first()], facts=facts, catalog=catalog)
    if found.spec is None:  # The first point may be invalid; the sweep's own settings must be valid without it.
        own = [word for word in axes.fixed if word.startswith(("sweep", "run.", "cluster"))]
        found = request(own, facts=facts, catalog=catalog)
    settings = found.spec
    if settings is None:
        raise ConfigErrors(found.errors)
    sampler, budget = settings.sweep.sampler, settings.sweep.budget
    if sampler != "grid" and budget is None:
        rule = f"{sampler} draws points without end: set how many runs to try"
        raise ConfigErrors([ConfigError("sweep.budget", None, rule, ["sweep.budget=20"])])
    return Sweep(
        words=tuple(words),
        axes=axes,
        settings=settings,
        catalog=catalog,
        facts=facts,
        force=force,
        trusted=trusted,
        measured=measured,
        searches=Searches(catalog, facts, search) if has_best else None,
    )


def directory_of(settings: RunSpec, *, folder: Path, kind: str = "sweep") -> Path:
    """The folder of a sweep: ``run.directory``, ``runs/<run.name>``, or a name made of the time and ``kind``.

    A folder named by time is created at once, so that two sweeps started in the same second get different ones. Raises
    SubmitError if it is not empty or cannot be created.
    """
    directory = directory_for(settings, kind, folder=folder)
    if settings.run.name is not None or settings.run.directory is not None:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise taken(directory)
        return directory
    for place in numbered(directory):
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise SubmitError(f"the sweep's folder {place} cannot be created: {error.strerror or error}") from None
        return place
    raise AssertionError("the numbers have no end")


def write(directory: Path, sweep: Sweep, points: Sequence[Point]) -> None:
    """Write ``sweep.json``: the words as typed, and every point with its verdict. RecordNotWritten if it fails."""
    content = {
        "schema": 1,
        "id": directory.name,
        "overrides": list(sweep.words),
        "forced": sweep.force,
        "points": [point.as_dict() for point in points],
        **({} if sweep.measures is None else {MEASUREMENT: sweep.measures}),
    }
    secrecy.require_none(content, state.SWEEP)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not (directory / state.SWEEP).exists():
            run_names.remember(directory)
        files.write_atomically(directory / state.SWEEP, content)
        signature.note(directory)
    except OSError as error:
        raise RecordNotWritten(f"the sweep's folder {directory}", error) from None


def load(directory: Path, *, catalog: Catalog, facts: Machine) -> tuple[Sweep, list[Point]]:
    """Read a sweep and its points from its folder. Raises ConfigErrors or BadRecord if it is no longer readable."""
    content = contents.read(directory, state.SWEEP) or {}
    if "overrides" not in content:
        raise contents.BadRecord(directory / state.SWEEP, "it lacks the command line of the sweep")
    force = content.get("forced", False)
    # A user who continues a sweep has recorded it, or has trusted it.
    sweep = read(content["overrides"], catalog=catalog, facts=facts, force=force, trusted=True, measured=Measured())
    return replace(sweep, measures=content.get(MEASUREMENT)), points(directory)


def points(directory: Path) -> list[Point]:
    """The points of a sweep's folder so far. Raises BadRecord if ``sweep.json`` is damaged."""
    return [read_point(directory, row) for row in (contents.read(directory, state.SWEEP) or {}).get("points", ())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A point and its run; ``measured_bytes`` is the worst rank's allocated peak. None for numbers not known yet."""

    point: Point
    run: status.RunState | None
    loss: float | None
    tokens_per_second: float | None
    measured_bytes: int | None
    trained: results.Trained | None = None

    @property
    def state(self) -> str:
        """The state of its run, or ``left out``."""
        return "left out" if self.run is None else self.run.state

    @property
    def reason(self) -> str | None:
        """Why it was left out, or the reason for its run's state."""
        return self.point.reason or (None if self.run is None else self.run.reason)

    def as_dict(self) -> JsonObject:
        """The row of ``launch status SWEEP --json``: a run's columns plus the point's own."""
        run: JsonObject = {"id": self.point.id, "directory": None, "state": None, "job_id": None, "step": None}
        if self.run is not None:
            run = self.run.as_dict()
        return {
            **self.point.as_dict(),
            **run,
            "reason": self.reason,
            "point": self.point.id,
            "loss": self.loss,
            "tokens_per_second": self.tokens_per_second,
            "measured_bytes": self.measured_bytes,
        }


def rows(directory: Path) -> list[Row]:
    """Every point of a sweep, including those left out."""
    every = list(points(directory))
    known = iter(status.read_all([directory / point.id for point in every if point.kept]))  # Asks Slurm only once.
    return [row(directory, point, next(known) if point.kept else None) for point in every]


def row(directory: Path, point: Point, now: status.RunState | None = None) -> Row:
    """One point of a started sweep; ``now`` is its state if already known."""
    if not point.kept:
        return Row(point=point, run=None, loss=None, tokens_per_second=None, measured_bytes=None)
    run = directory / point.id
    steps, measured = results.steps(run), results.measured(run)
    return Row(
        point=point,
        run=now or status.read(run),
        loss=results.loss(steps) if steps else None,
        tokens_per_second=results.speed(steps),
        measured_bytes=max(measured.values(), default=None),
        trained=results.trained_on(run, steps) if steps else None,
    )


def basis(found: Iterable[Row]) -> results.Basis:
    """The loss by which points are ranked."""
    return results.ranking_basis(row.trained for row in found if row.trained is not None)


def best(found: Iterable[Row]) -> Row | None:
    """The point with the lowest loss; None if no loss is finite, or if the losses are not comparable."""
    rows = list(found)
    by = basis(rows)
    known = ((loss, row) for row in rows if (loss := by.loss(row.trained)) is not None and math.isfinite(loss))
    return min(known, key=lambda pair: pair[0], default=(0.0, None))[1]


def words(directory: Path, row: Row) -> list[str]:
    """The overrides that repeat a point as a single run: without the sweep's name, folder and settings."""
    recorded = contents.known(directory / row.point.id, contents.PLAN).get("overrides", [])
    return [word for word in recorded if not word.startswith(("run.name=", "run.directory=", "sweep=", "sweep."))]
