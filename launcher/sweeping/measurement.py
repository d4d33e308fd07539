"""A measurement: a sweep whose points are layouts, and what came of them beside what was predicted.

``sweep.json`` holds what any sweep's does, so that its runs are seen, cancelled and resumed as those of a sweep, and
under ``measurement`` the question, the training that the layouts are for, their predictions, and the versions that
were installed where they were made.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher.base import typed
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.machine import Machine
from launcher.base.units import gib, rounded
from launcher.config.axes import Axes
from launcher.config.catalog import Catalog
from launcher.planner.result import Layout
from launcher.planner.shortlist import Shortlist
from launcher.preflight import job_python
from launcher.rundir import contents, provenance, results, state
from launcher.spec import RunSpec
from launcher.sweeping import outcomes, sweep
from launcher.sweeping.sweep import MEASUREMENT, Sweep

KIND = "measurement"
"""The name of its folder behind the time, where the words name none."""

_MEANT = frozenset({"save.last", "save.every", "optimizer.warmup_steps", "train.eval_every"})
"""Keys that have warnings in every run that is as short as these."""


def sweep_of(chosen: Shortlist, *, question: Sequence[str], catalog: Catalog, facts: Machine, trusted: bool) -> Sweep:
    """The sweep whose points are the layouts of a shortlist.

    Args:
        chosen: The layouts.
        question: The words of the question, as typed.
        catalog: The configuration folders.
        facts: This machine.
        trusted: As of any sweep.

    Raises:
        ConfigErrors: The words ask for a sampler.
    """
    found = sweep.read(chosen.words, catalog=catalog, facts=facts, force=False, trusted=trusted)
    if found.settings.sweep.sampler != "grid":
        rule = "a sampler draws points, and those of a measurement are the layouts"
        raise ConfigErrors([ConfigError("sweep.sampler", found.settings.sweep.sampler, rule, ["sweep.sampler=grid"])])
    axes = Axes(fixed=found.axes.fixed, swept=())
    return replace(found, axes=axes, meant=_MEANT, measures=_record(chosen, question))


def _record(chosen: Shortlist, question: Sequence[str]) -> dict[str, Any]:
    run = chosen.runs[0]
    versions = provenance.versions()
    there = job_python.kept(run)  # A container's Python, or one that only the nodes have, may be unknown.
    packages = {} if there is None else there.packages
    return {
        "question": list(question),
        "training": list(chosen.training),
        "left_out": list(chosen.left_out),
        "steps": chosen.steps,
        "time_limit_min": chosen.time_limit_min,
        "model": run.model.name,
        "gpus": run.gpus,
        "gpu_hours": chosen.gpu_hours,
        "most_gpu_hours": chosen.most_gpu_hours,
        "price_per_gpu_hour": chosen.price_per_gpu_hour,
        "machine": machine(run),
        "versions": {
            "launcher": versions["launcher"],
            "python": packages.get("python", versions["python"] if run.cluster.python is None else None),
            "packages": {name: packages[name] for name in provenance.PACKAGES if name in packages},
        },
        "layouts": [_layout(layout, words) for layout, words in zip(chosen.layouts, chosen.overrides, strict=True)],
    }


def _layout(layout: Layout, words: Sequence[str]) -> dict[str, Any]:
    speed, verdict = layout.speed, layout.verdict
    keys = ("tokens_per_second_per_gpu", "low", "high", "step_seconds")
    return {
        "overrides": list(words),
        "device": layout.spec.hardware.device,
        "speed": None if speed is None else {key: getattr(speed, key) for key in keys},
        "used_bytes": verdict.used_bytes,
        "capacity_bytes": verdict.capacity_bytes,
    }


def machine(run: RunSpec) -> str:
    """Where the runs are: ``2 nodes of 8 x NVIDIA H100 80GB HBM3``, ``2 CPU ranks``."""
    cluster, card = run.cluster, f"x {run.hardware.title or run.hardware.name}"
    if run.hardware.device == "cpu":
        card = "CPU rank" if run.gpus == 1 else "CPU ranks"
    nodes = f"{cluster.nodes} nodes of " if cluster.nodes > 1 else ""
    return f"{nodes}{cluster.gpus_per_node} {card}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One layout and what came of its run.

    Attributes:
        row: The point and its run.
        directory: The run's folder; None where there is none.
        layout: What ``sweep.json`` has of the layout.
        tokens_per_second_per_gpu: Measured; None unless its run has finished.
        step_seconds: As that.
        counted: The steps that the speed is the median of.
    """

    row: outcomes.Row
    directory: Path | None
    layout: Mapping[str, Any]
    tokens_per_second_per_gpu: float | None = None
    step_seconds: float | None = None
    counted: int = 0

    @property
    def state(self) -> str:
        """The state of its run, or ``left out``."""
        return "left out" if self.row.run is None else self.row.run.state

    @property
    def unit(self) -> str:
        """What a rank is: a GPU, or a process on the CPU."""
        return "rank" if self.layout.get("device") == "cpu" else "GPU"

    @property
    def reason(self) -> str | None:
        """Why it has no result."""
        return self.row.point.reason or (None if self.row.run is None else self.row.run.reason)

    @property
    def is_open(self) -> bool:
        """True if its run may still come to a result by itself."""
        return self.row.run is not None and self.row.run.state not in (*state.ENDED, "prepared", "not_visible")

    @property
    def predicted_per_gpu(self) -> float | None:
        """Predicted tokens a second and GPU; None where that is unknown."""
        found = (self.layout.get("speed") or {}).get("tokens_per_second_per_gpu")
        return float(found) if typed.is_number(found) else None

    @property
    def predicted_bytes(self) -> int | None:
        """Predicted peak of what the worst rank allocates."""
        return self.row.point.predicted_bytes

    @property
    def measured_bytes(self) -> int | None:
        """The same, measured; None unless its run has finished."""
        return None if self.tokens_per_second_per_gpu is None else self.row.measured_bytes

    def as_dict(self, place: int | None) -> dict[str, Any]:
        """The row of ``launch plan --results --json``."""
        return {
            "rank": place,
            "point": self.row.point.id,
            "run": None if self.row.run is None else self.row.run.id,
            "overrides": list(self.row.point.overrides),
            "state": self.state,
            "reason": self.reason,
            "predicted": {
                "tokens_per_second_per_gpu": self.predicted_per_gpu,
                "step_seconds": (self.layout.get("speed") or {}).get("step_seconds"),
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
    """What came of a measurement: the fastest first, then those without a result in the order of their predictions."""

    directory: Path
    content: Mapping[str, Any]
    rows: tuple[Measured, ...]

    @property
    def measured(self) -> tuple[Measured, ...]:
        """Those with a result, the fastest first."""
        return tuple(row for row in self.rows if row.tokens_per_second_per_gpu is not None)

    @property
    def waits(self) -> int:
        """Runs that may still come to a result."""
        return sum(row.is_open for row in self.rows)

    def words(self, row: Measured) -> list[str]:
        """The training with a layout, as typed."""
        return [*self.content["training"], *row.row.point.overrides]


def read(directory: Path) -> Results:
    """What came of a measurement so far.

    Raises:
        ConfigErrors: It is a sweep of another kind.
        BadRecord: Its record is damaged.
    """
    content = (contents.read(directory, state.SWEEP) or {}).get(MEASUREMENT)
    if content is None:
        rule = "a sweep, and none of layouts that `launch plan --measure N` has started"
        raise ConfigErrors([ConfigError("--results", directory.name, rule, [f"launch status {directory.name}"])])
    content = _checked(directory, content)
    found = [
        _measured(directory, row, layout, content["gpus"])
        for row, layout in zip(outcomes.rows(directory), content["layouts"], strict=True)
    ]
    found.sort(key=lambda row: -(row.tokens_per_second_per_gpu or 0.0))
    return Results(directory=directory, content=content, rows=tuple(found))


def _checked(directory: Path, content: Mapping[str, Any]) -> Mapping[str, Any]:
    layouts, training = content.get("layouts"), content.get("training")
    right = (
        isinstance(training, list) and all(isinstance(word, str) for word in training),
        typed.is_whole(content.get("gpus")) and content["gpus"] > 0,
        isinstance(layouts, list) and all(isinstance(each, dict) for each in layouts),
        isinstance(layouts, list) and len(layouts) == len(sweep.points(directory)),
        isinstance(content.get("versions"), dict)
        and all(isinstance(content.get(key), str) for key in ("machine", "model")),
    )
    if not all(right):
        raise contents.BadRecord(directory / state.SWEEP, "its measurement is not as `launch plan --measure` writes it")
    return content


def _measured(directory: Path, row: outcomes.Row, layout: Mapping[str, Any], gpus: int) -> Measured:
    if row.run is None:
        return Measured(row=row, directory=None, layout=layout)
    run = directory / row.point.id
    lines = results.steps(run) if row.run.state == "finished" else []
    speed = results.speed(lines)
    if speed is None:
        return Measured(row=row, directory=run, layout=layout)
    counted = results.second_half(lines)
    seconds = [found for line in counted if (found := results.number(line, "step_seconds")) is not None]
    return Measured(
        row=row,
        directory=run,
        layout=layout,
        tokens_per_second_per_gpu=speed / gpus,
        step_seconds=statistics.median(seconds) if seconds else None,
        counted=len(counted),
    )


def date_of(row: Measured) -> str | None:
    """The day on which a run ended, in UTC; None where its lines do not say."""
    lines = results.steps(row.directory) if row.directory is not None else []
    moment = results.number(lines[-1], "time") if lines else None
    return None if moment is None else f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d}"


def summary(found: Results, best: Measured) -> str:
    """What the recipe is for: how its layout was chosen."""
    count = len(found.measured)
    chosen = f"The fastest of {count} measured layouts" if count > 1 else "The one layout that was measured"
    so_far = f", with {found.waits} to come" if found.waits else ""
    return f"{chosen}{so_far}, of {found.content['model']} on {found.content['machine']}"


def source(found: Results, best: Measured) -> str:
    """What was measured, where, with what and when; and the layouts that it was compared with."""
    others = [f"{_name(found, row)} {_outcome(row)}" for row in found.rows if row is not best]
    return "; ".join((*_parts(found, best), *([f"others: {', '.join(others)}"] if others else [])))


def _parts(found: Results, best: Measured) -> Iterator[str]:
    predicted = "" if best.predicted_per_gpu is None else f" (predicted {rounded(best.predicted_per_gpu)})"
    steps = f"median of the last {best.counted} of {best.row.run.progress.step} steps" if best.row.run else ""
    yield f"measured {_outcome(best)}{predicted}, {steps} on random tokens"
    if best.measured_bytes is not None:
        predicted = "" if best.predicted_bytes is None else f" (predicted {gib(best.predicted_bytes)})"
        yield f"{gib(best.measured_bytes)} allocated on the fullest rank{predicted}"
    yield f"on {found.content['machine']}"
    yield _versions(found, best)
    if (date := date_of(best)) is not None:
        yield date
    yield f"run {_name(found, best)}"


def _versions(found: Results, best: Measured) -> str:
    """The launcher's, and of the packages that the run imports those that are known."""
    versions = found.content["versions"]
    needed = [] if best.directory is None else job_python.needed(contents.spec_of(best.directory))
    packages = {name: version for name, version in versions["packages"].items() if name in ("torch", *needed)}
    known = {"launch": versions["launcher"], "Python": versions["python"], **packages}
    return ", ".join(f"{name} {version}" for name, version in known.items() if version is not None)


def _name(found: Results, row: Measured) -> str:
    return f"{found.directory.name}/{row.row.point.id}"


def _outcome(row: Measured) -> str:
    per_gpu = row.tokens_per_second_per_gpu
    return row.state if per_gpu is None else f"{rounded(per_gpu)} tokens/s a {row.unit}"
