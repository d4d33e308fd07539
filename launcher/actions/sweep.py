"""``launch -m``: check every point of a sweep, skip those that are invalid or cannot fit, and start the rest.

A grid is checked and recorded before any run starts; nothing is written if no point is kept. On this machine a
sampler's points come one at a time, so that each can use the loss of the one before; on Slurm they come in batches of
``sweep.parallelism``, and ``launch resume`` draws the next. Starting and resuming share one function; a lock keeps a
second launcher out.
"""

import contextlib
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from launcher.actions import layout_search
from launcher.actions.follow import follow
from launcher.actions.requests import JudgeRequest, folder, own_measurements
from launcher.actions.trust_gate import require_trust
from launcher.base import machine
from launcher.base.errors import INTERRUPTED, ConfigError, ConfigErrors, DoesNotFit, Refused
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.terminal import say, width, wrapped
from launcher.config.catalog import Catalog
from launcher.config.compose import Interval
from launcher.config.request import CommandLine
from launcher.planner import planning
from launcher.planner.judge import Preflight
from launcher.preflight.plan import plan
from launcher.rundir import contents, lock, results, run_names, state, status
from launcher.rundir.record import RecordNotWritten, record
from launcher.spec import RunSpec
from launcher.submission import interrupts
from launcher.submission.slurm_jobs import NoJob
from launcher.submission.submit import one_at_a_time, settle, submit, submit_all
from launcher.sweeping import samplers, sweep
from launcher.sweeping.point import Point, differences, name_points
from launcher.sweeping.samplers import ProposedPoint
from launcher.sweeping.sweep import Sweep
from launcher.views import runs

_TO_START = ("prepared", "failed", "cancelled", "lost", "not_visible")
_UNLUCKY = 200  # Proposals in a row without a new run, after which a sampler's space counts as exhausted.


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest(JudgeRequest):
    """A sweep; ``force`` also starts points that do not fit."""

    force: bool = False


type Show = Callable[[str], None]
"""Receives the text of a result while the rest is still running."""


def judge_points(request: SweepRequest, *, quiet: bool = False) -> list[Point]:
    """Every point of a grid with its verdict; raises ConfigErrors if a sampler would draw from an interval."""
    swept = _read(replace(request, force=False, trust=False), quiet=quiet)
    sampler = swept.settings.sweep.sampler
    drawn = [(axis.key, axis.values) for axis in swept.axes.swept if isinstance(axis.values, Interval)]
    if sampler != "grid" and drawn:
        rule = f"check -m checks a grid, and {sampler} draws from this only when the sweep runs: list values to check"
        raise ConfigErrors(ConfigError(key, "interval", rule, [f"{key}={ends.low},{ends.high}"]) for key, ends in drawn)
    points, valid = list[Point](), list[tuple[str, RunSpec]]()
    for number, overrides in enumerate(swept.axes.grid()):
        point, assessment = swept.point(number, overrides)
        points.append(point)
        valid += [(point.id, assessment.spec)] if assessment is not None else []
    report_remarks(swept)
    _report_differences(swept, valid)
    return points


def _read(request: SweepRequest, *, quiet: bool) -> Sweep:
    line, own = request.command_line(), own_measurements(wanted=request.measured)
    return sweep.read(
        line.words,
        catalog=line.catalog,
        facts=machine.facts(),
        force=request.force,
        trusted=request.trust,
        measured=own,
        search=partial(planning.plan if quiet else layout_search.search, judge=Preflight(own)),
    )


def _report_differences(swept: Sweep, points: Sequence[tuple[str, RunSpec]]) -> None:
    for sentence in differences(points, [axis.key for axis in swept.axes.swept]):
        _report(f"launch: {sentence}")


def report_remarks(swept: Sweep, known: Collection[str] = ()) -> None:
    """Report the remarks on points' words, data and files, once for all points, except those already known."""
    if swept.measured is not None:
        swept.measured.tell(say)
    for remark, names in swept.remarks.items():
        if remark not in known:
            _report(f"{remark} (points {name_points(names)})" if len(names) > 1 else f"{remark} (point {names[0]})")


def _report(text: str) -> None:
    say("\n".join(wrapped(text, width(), rest="  ")))


def left_out_text(points: Sequence[Point]) -> str:
    """The points that are not run, with the reason of each; empty if all are run."""
    if not (left_out := [point for point in points if not point.kept]):
        return ""
    more = "" if len(left_out) < len(points) else "\n`launch check` with the words of one point shows what would help"
    return f"{len(left_out)} of {len(points)} points left out:\n{runs.judged(left_out, width())}{more}"


def start_sweep(request: SweepRequest, *, show: Show | None) -> tuple[Sweep, Path, list[Point], int]:
    """Start a sweep: one run after the other on this machine, all at once on Slurm, without waiting for them.

    ``show`` receives the texts of each run; None shows neither these nor progress. Returns the sweep; its folder, which
    is not written if no point is kept; its points; and the worst exit status of its runs.
    """
    swept = _read(request, quiet=show is None)
    if swept.settings.sweep.sampler != "grid":
        samplers.require()
    elif not swept.axes.swept:
        say("launch: nothing is swept, so this is a sweep of one point: list several values, as in train.seed=1,2")
    proposals = swept.axes.grid() if swept.settings.sweep.sampler == "grid" else ()
    return swept, *begin_sweep(swept, proposals, show=show)


def begin_sweep(
    swept: Sweep, proposals: Iterable[tuple[str, ...]], *, show: Show | None, kind: str = "sweep"
) -> tuple[Path, list[Point], int]:
    """Start a sweep whose first points have these overrides; the folder, points and status of :func:`start_sweep`."""
    directory = sweep.directory_of(swept.settings, folder=folder(), kind=kind)
    points = list[Point]()
    try:
        points += _judge_grid(swept, directory, proposals)
        exit_status = _go(swept, directory, points, show=show)
    except (ConfigErrors, NoJob, Refused, RecordNotWritten, KeyboardInterrupt):
        if not any(directory.glob(f"*/{state.SUBMISSION}")):  # Free the name for the corrected sweep.
            shutil.rmtree(directory, ignore_errors=True)
        raise
    finally:
        with contextlib.suppress(OSError):
            directory.rmdir()  # If no point was kept, nothing was written and the folder is empty.
            directory.parent.rmdir()
    return directory, points, exit_status


def best_line(swept: Sweep, directory: Path) -> str | None:
    """The best point of a sweep that ran here; None on Slurm, where its runs have hardly begun."""
    rows = sweep.rows(directory) if swept.settings.cluster.kind == "local" else []
    return runs.best_line(directory, sweep.best(rows), rows)


def resume(directory: Path, *, show: Show | None, trusted: bool = False) -> int:
    """Continue a sweep: start the runs that have not finished, then those that a sampler has yet to propose."""
    swept, points = sweep.load(directory, catalog=Catalog(folder=folder()), facts=machine.facts())
    if swept.settings.sweep.sampler != "grid":
        require_trust(CommandLine(words=tuple(swept.words), catalog=swept.catalog), trusted=trusted)
    exit_status = _go(swept, directory, points, show=show)
    if show is not None and (best := best_line(swept, directory)):
        show(best)
    return exit_status


def _go(swept: Sweep, directory: Path, points: list[Point], *, show: Show | None) -> int:
    exit_status = _start(swept, directory, _waiting(directory, points), show=show)
    if swept.settings.sweep.sampler == "grid" or exit_status == INTERRUPTED:
        return exit_status
    here = swept.settings.cluster.kind == "local"
    while batch := _propose(swept, directory, points, 1 if here else swept.settings.sweep.parallelism):
        exit_status = max(exit_status, _start(swept, directory, batch, show=show))
        if not here or exit_status == INTERRUPTED:
            break
    return exit_status


def _judge_grid(swept: Sweep, directory: Path, proposals: Iterable[tuple[str, ...]]) -> list[Point]:
    here = cache(lock.here)  # A grid is checked at once, so what its runs are made of is read once.
    points = [_record_point(swept, directory, number, overrides, here) for number, overrides in enumerate(proposals)]
    report_remarks(swept)
    if any(point.kept for point in points):
        sweep.write(directory, swept, points)
    return points


def _record_point(
    swept: Sweep,
    directory: Path,
    number: int,
    overrides: Sequence[str],
    here: Callable[..., Mapping[str, Any]] = lock.here,
) -> Point:
    point, assessment = swept.point(number, overrides, directory)
    if point.kept and assessment is not None:
        planned = plan(assessment, python=sys.executable)
        words = (*swept.axes.fixed, *point.overrides)
        made_of = here(planned.spec.data, with_diff=planned.spec.run.record_diff)
        record(planned, directory / point.id, overrides=words, forced=swept.force, made_of=made_of)
    return point


def _propose(swept: Sweep, directory: Path, points: list[Point], limit: int | None) -> list[Point]:
    settings, batch = swept.settings, list[Point]()
    room = (settings.sweep.budget or 0) - sum(point.kept for point in points)
    tried = [_result_of(directory, point) for point in points]
    by_overrides = {point.proposed: result for point, result in zip(points, tried, strict=True)}
    unlucky = 0
    while len(batch) < min(room, limit or room) and unlucky < _UNLUCKY:
        overrides = samplers.propose(swept.axes, settings.sweep.sampler, settings.train.seed, tried)
        unlucky += 1
        if overrides not in by_overrides:
            known = {*swept.remarks}
            point = _record_point(swept, directory, len(points), overrides)
            report_remarks(swept, known)
            points.append(point)
            by_overrides[overrides] = ProposedPoint(overrides=overrides, loss=None, pending=point.kept)
            if point.kept:
                batch.append(point)
                unlucky = 0
        tried.append(by_overrides[overrides])
    if unlucky == _UNLUCKY:
        say(f"launch: {_UNLUCKY} proposals in a row were known or left out: the search space is exhausted")
    if batch:
        sweep.write(directory, swept, points)
    return batch


def _result_of(directory: Path, point: Point) -> ProposedPoint:
    if not point.kept:
        return ProposedPoint(overrides=point.proposed, loss=None)
    run = directory / point.id
    now, steps = status.read(run).state, results.steps(run)
    loss = results.loss(steps) if now == "finished" and steps else None
    return ProposedPoint(overrides=point.proposed, loss=loss, pending=now not in state.ENDED)


def _start(swept: Sweep, directory: Path, points: Sequence[Point], *, show: Show | None) -> int:
    if not points:
        return 0
    with one_at_a_time(directory, wait=False):
        return _start_all(swept, directory, _waiting(directory, points), show=show)


def _waiting(directory: Path, points: Sequence[Point]) -> list[Point]:
    kept = [point for point in points if point.kept]
    states = status.read_all([directory / point.id for point in kept])
    return [point for point, now in zip(kept, states, strict=True) if now.state in _TO_START]


def _live_jobs(directory: Path) -> list[str]:
    rows = status.read_all([directory / point.id for point in sweep.points(directory) if point.kept])
    return [row.job_id for row in rows if row.state in ("queued", "running", "requeued") and row.job_id is not None]


def _start_all(swept: Sweep, directory: Path, points: Sequence[Point], *, show: Show | None) -> int:
    places = [directory / point.id for point in points]
    specs = [contents.spec_of(run) for run in places]
    for run in places:
        settle(run)
        state.forget_ending(run)
    _report_differences(swept, [(point.id, spec) for point, spec in zip(points, specs, strict=True)])
    if swept.settings.cluster.kind == "slurm":
        limit = swept.settings.sweep.parallelism
        live = [] if limit is None else _live_jobs(directory)
        jobs = submit_all(list(zip(places, specs, strict=True)), limit, live)
        if jobs and show is not None:
            at_once = "" if limit is None else f", at most {limit} at once"
            show(f"{len(places)} runs in {len(jobs)} jobs ({', '.join(jobs)}){at_once}  {directory}")
        return 0
    exit_status = 0
    for point, run, spec in zip(points, places, specs, strict=True):
        try:
            with interrupts.held():
                submit(run, spec)
                ended = follow(run, spec, show=show, summary=False)
        except KeyboardInterrupt:
            _report_waiting(directory, points)
            raise
        exit_status = max(exit_status, ended)
        if show is not None:
            show(runs.sweep_text([sweep.row(directory, point)], width(), heading=point == points[0]))
        if ended == INTERRUPTED:
            _report_waiting(directory, points)
            break
    return exit_status


def _report_waiting(directory: Path, points: Sequence[Point]) -> None:
    waiting = [point for point in points if not (directory / point.id / state.SUBMISSION).exists()]
    if 0 < len(waiting) < len(points):
        name = run_names.name_of(directory, folder())
        say(f"launch: {len(waiting)} of the sweep's runs are not started: `launch resume {name}` starts them")


def point_rows(directory: Path, points: Sequence[Point]) -> list[JsonObject]:
    """The points of a started sweep, for ``--json``: each with its run, or why it was left out."""
    now = iter(status.read_all([directory / point.id for point in points if point.kept]))
    return [
        {"id": point.id, "overrides": list(point.overrides), "verdict": point.verdict}
        | ({"run": next(now).as_dict()} if point.kept else {"reason": point.reason})
        for point in points
    ]


def status_of(points: Sequence[Point]) -> int:
    """0 if at least one point can run, else 3 if one is valid but does not fit, else 2."""
    if any(point.kept for point in points):
        return 0
    unfit = any(point.verdict != "invalid" for point in points)
    return DoesNotFit.exit_status if unfit else ConfigErrors.exit_status
