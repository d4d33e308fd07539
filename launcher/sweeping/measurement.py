"""Measurements: sweeps whose points are layouts, with measured results next to predictions."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from launcher.base import typed
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.machine import Machine
from launcher.base.units import gib, rounded
from launcher.config.axes import Axes
from launcher.config.catalog import Catalog
from launcher.estimate.speed.result import SpeedEstimate
from launcher.job.versions import PACKAGES
from launcher.planner.shortlist import Shortlist
from launcher.preflight import job_python
from launcher.rundir import contents, provenance, results, state
from launcher.spec import RunSpec
from launcher.sweeping import sweep
from launcher.sweeping.sweep import MEASUREMENT, Sweep

KIND = "measurement"  # The name of its folder after the time, if the words name none.
_MEANT = frozenset({"save.last", "save.every", "optimizer.warmup_steps", "train.eval_every"})
"""Keys that cause warnings in every run as short as these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedSpeed:
    """The speed that the planner predicts for a layout."""

    tokens_per_second_per_gpu: float
    step_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Versions of the launcher, of the runs' Python and of its packages, as far as known."""

    launcher: str
    python: str | None
    packages: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The part of ``sweep.json`` that makes a sweep a measurement: its question, its machine and its predictions."""

    question: tuple[str, ...]
    training: tuple[str, ...]
    steps: int
    model: str
    device: str
    gpus: int
    machine: str
    versions: Versions
    speeds: tuple[PredictedSpeed | None, ...]  # The predicted speed of each layout; None if unknown.

    @classmethod
    def of(cls, chosen: Shortlist, question: Sequence[str]) -> "Record":
        """The record of a shortlist."""
        run, here = chosen.runs[0], provenance.versions()
        there = job_python.kept(run)  # May be unknown for a container's Python, or one that only the nodes have.
        packages = {} if there is None else there.packages
        versions = Versions(
            launcher=here["launcher"],
            python=packages.get("python", here["python"] if run.cluster.python is None else None),
            packages={name: packages[name] for name in PACKAGES if name in packages},
        )
        return cls(
            question=tuple(question),
            training=chosen.training,
            steps=chosen.steps,
            model=run.model.name,
            device=run.hardware.device,
            gpus=run.gpus,
            machine=machine_text(run),
            versions=versions,
            speeds=tuple(_predicted(layout.speed) for layout in chosen.layouts),
        )


def _predicted(speed: SpeedEstimate | None) -> PredictedSpeed | None:
    if speed is None:
        return None
    return PredictedSpeed(tokens_per_second_per_gpu=speed.tokens_per_second_per_gpu, step_seconds=speed.step_seconds)


def sweep_of(chosen: Shortlist, *, question: Sequence[str], catalog: Catalog, facts: Machine, trusted: bool) -> Sweep:
    """The sweep whose points are the layouts of a shortlist. Raises ConfigErrors if the words set a sampler."""
    found = sweep.read(chosen.words, catalog=catalog, facts=facts, force=False, trusted=trusted)
    if found.settings.sweep.sampler != "grid":
        rule = "a sampler draws points, but the points of a measurement are its layouts"
        raise ConfigErrors([ConfigError("sweep.sampler", found.settings.sweep.sampler, rule, ["sweep.sampler=grid"])])
    axes = Axes(fixed=found.axes.fixed, swept=())
    return replace(found, axes=axes, meant=_MEANT, measures=asdict(Record.of(chosen, question)))


def machine_text(run: RunSpec) -> str:
    """The hardware of a run in words: ``2 nodes of 8 x NVIDIA H100 80GB HBM3``, ``2 CPU ranks``."""
    cluster, card = run.cluster, f"x {run.hardware.title or run.hardware.name}"
    if run.hardware.device == "cpu":
        card = "CPU rank" if run.gpus == 1 else "CPU ranks"
    nodes = f"{cluster.nodes} nodes of " if cluster.nodes > 1 else ""
    return f"{nodes}{cluster.gpus_per_node} {card}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One layout and the result of its run."""

    row: sweep.Row  # The point and its run.
    directory: Path | None  # The run's folder; None if there is none.
    predicted: PredictedSpeed | None  # The predicted speed; None if unknown.
    tokens_per_second_per_gpu: float | None = None  # Measured; None unless its run has finished.
    step_seconds: float | None = None  # Measured; None unless its run has finished.
    counted: int = 0  # Number of steps over which the median speed is taken.

    @property
    def is_open(self) -> bool:
        """True if its run may still produce a result by itself."""
        return self.row.run is not None and self.row.run.state not in (*state.ENDED, "prepared", "not_visible")

    @property
    def predicted_per_gpu(self) -> float | None:
        """Predicted tokens/s per GPU; None if unknown."""
        return None if self.predicted is None else self.predicted.tokens_per_second_per_gpu

    @property
    def predicted_bytes(self) -> int | None:
        """Predicted allocated peak of the worst rank."""
        return self.row.point.predicted_bytes

    @property
    def measured_bytes(self) -> int | None:
        """Measured allocated peak of the worst rank; None unless its run has finished."""
        return None if self.tokens_per_second_per_gpu is None else self.row.measured_bytes

    def as_dict(self, place: int | None) -> JsonObject:
        """The row of ``launch plan --results --json``."""
        return {
            "rank": place,
            "point": self.row.point.id,
            "run": None if self.row.run is None else self.row.run.id,
            "overrides": list(self.row.point.overrides),
            "state": self.row.state,
            "reason": self.row.reason,
            "predicted": {
                "tokens_per_second_per_gpu": self.predicted_per_gpu,
                "step_seconds": None if self.predicted is None else self.predicted.step_seconds,
                "allocated_bytes": self.predicted_bytes,
            },
            "measured": {
                "tokens_per_second_per_gpu": self.tokens_per_second_per_gpu,
                "step_seconds": self.step_seconds,
                "allocated_bytes": self.measured_bytes,
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """A measurement's rows: the fastest first, then those without a result in predicted order."""

    directory: Path
    record: Record
    rows: tuple[Measured, ...]

    @property
    def measured(self) -> tuple[Measured, ...]:
        """The rows with a result, the fastest first."""
        return tuple(row for row in self.rows if row.tokens_per_second_per_gpu is not None)

    @property
    def waits(self) -> int:
        """The number of runs that may still produce a result."""
        return sum(row.is_open for row in self.rows)


def read(directory: Path) -> Results:
    """The results of a measurement so far. Raises ConfigErrors for another sweep, BadRecord for a damaged record."""
    content = (contents.read(directory, state.SWEEP) or {}).get(MEASUREMENT)
    if content is None:
        rule = "it is a sweep, but not a measurement started by `launch plan --measure N`"
        raise ConfigErrors([ConfigError("--results", directory.name, rule, [f"launch status {directory.name}"])])
    rows = sweep.rows(directory)
    try:
        record = typed.read(Record, content)
    except typed.Unfit:
        record = None
    if record is None or record.gpus < 1 or len(record.speeds) != len(rows):
        raise contents.BadRecord(
            directory / state.SWEEP, "its measurement is not in the form that `launch plan --measure` writes"
        )
    found = [_result_of(directory, row, speed, record.gpus) for row, speed in zip(rows, record.speeds, strict=True)]
    found.sort(key=lambda row: -(row.tokens_per_second_per_gpu or 0.0))
    return Results(directory=directory, record=record, rows=tuple(found))


def _result_of(directory: Path, row: sweep.Row, predicted: PredictedSpeed | None, gpus: int) -> Measured:
    if row.run is None:
        return Measured(row=row, directory=None, predicted=predicted)
    run = directory / row.point.id
    lines = results.steps(run) if row.run.state == "finished" else []
    speed = results.speed(lines)
    if speed is None:
        return Measured(row=row, directory=run, predicted=predicted)
    counted = results.second_half(lines)
    seconds = [found for line in counted if (found := results.number(line, "step_seconds")) is not None]
    return Measured(
        row=row,
        directory=run,
        predicted=predicted,
        tokens_per_second_per_gpu=speed / gpus,
        step_seconds=statistics.median(seconds) if seconds else None,
        counted=len(counted),
    )


def summary(found: Results) -> str:
    """A recipe's summary of the fastest layout: the number of candidates, the model and the machine."""
    count, record = len(found.measured), found.record
    chosen = f"The fastest of {count} measured layouts" if count > 1 else "The one layout that was measured"
    so_far = f", with {found.waits} to come" if found.waits else ""
    return f"{chosen}{so_far}, of {record.model} on {record.machine}"


def source(found: Results) -> str:
    """A recipe's source for the fastest layout: its measurement, and the layouts compared with it."""
    best = found.measured[0]
    others = [f"{_name(found, row)} {_outcome(found, row)}" for row in found.rows if row is not best]
    return "; ".join((*_evidence(found, best), *([f"others: {', '.join(others)}"] if others else [])))


def _outcome(found: Results, row: Measured) -> str:
    unit, speed = "rank" if found.record.device == "cpu" else "GPU", row.tokens_per_second_per_gpu
    return row.row.state if speed is None else f"{rounded(speed)} tokens/s a {unit}"


def _evidence(found: Results, best: Measured) -> Iterator[str]:
    predicted = "" if best.predicted_per_gpu is None else f" (predicted {rounded(best.predicted_per_gpu)})"
    steps = f"median of the last {best.counted} of {best.row.run.progress.step} steps" if best.row.run else ""
    yield f"measured {_outcome(found, best)}{predicted}, {steps} on random tokens"
    if best.measured_bytes is not None:
        predicted = "" if best.predicted_bytes is None else f" (predicted {gib(best.predicted_bytes)})"
        yield f"{gib(best.measured_bytes)} allocated on the fullest rank{predicted}"
    yield f"on {found.record.machine}"
    yield _versions_text(found.record.versions, best)
    lines = results.steps(best.directory) if best.directory is not None else []
    if (moment := results.number(lines[-1], "time") if lines else None) is not None:
        yield f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d}"
    yield f"run {_name(found, best)}"


def _versions_text(versions: Versions, best: Measured) -> str:
    needed = [] if best.directory is None else job_python.needed(contents.spec_of(best.directory))
    packages = {name: version for name, version in versions.packages.items() if name in ("torch", *needed)}
    known = {"launch": versions.launcher, "Python": versions.python, **packages}
    return ", ".join(f"{name} {version}" for name, version in known.items() if version is not None)


def _name(found: Results, row: Measured) -> str:
    return f"{found.directory.name}/{row.row.point.id}"
