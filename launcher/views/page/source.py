"""The contents of a run's folder, read once for its page; what cannot be read becomes a sentence."""

from collections.abc import Mapping
from pathlib import Path

from launcher.base import typed
from launcher.base.errors import LauncherError
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.estimate.memory.breakdown import Breakdown
from launcher.estimate.memory.result import MemoryEstimate
from launcher.job import events
from launcher.job.memory import MemoryRecord, OutOfMemory, ran_out, records
from launcher.preflight import assess, findings
from launcher.rundir import contents, results, state, status
from launcher.rundir.status import RunState
from launcher.spec import RunSpec

_FILES = (contents.SPEC, contents.PLAN, contents.JOB, contents.STATE, contents.MEMORY, state.SUBMISSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The memory that this version predicts for the recorded run."""

    estimate: MemoryEstimate
    columns: Breakdown


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """The readable contents of a run's folder."""

    folder: Path  # The run directory.
    state: RunState  # Its state and progress.
    spec: RunSpec | None  # Its specification; None where this version cannot read it.
    settings: JsonObject  # The raw ``spec.json``.
    plan: JsonObject  # ``plan.json``.
    job: JsonObject  # ``job.json``.
    rows: tuple[JsonObject, ...]  # Lines of metrics.
    events: tuple[JsonObject, ...]  # Its events.
    memory: tuple[MemoryRecord, ...]  # Lines of ``memory.jsonl``.
    measured: Mapping[str, int]  # Peaks by phase of ``memory.json``.
    ran_out: OutOfMemory | None  # ``oom.json``.
    predicted: Predicted | None  # Piles by phase; None when they cannot be computed.
    damage: tuple[str, ...]  # Sentences about files that cannot be read.

    @property
    def is_script(self) -> bool:
        """True for a user's own script, for which neither memory nor speed is predicted."""
        return self.settings.get("script") is not None

    @property
    def capacity_bytes(self) -> int | None:
        """Memory of a rank's device by the plan."""
        size = (self.plan.get("gpu") or {}).get("memory_bytes")
        return size if typed.is_whole(size) else None


def read(folder: Path) -> Source:
    """Read a run's folder."""
    damage = []
    for name in _FILES:
        try:
            contents.read(folder, name)
        except contents.BadRecord as bad:
            damage.append(bad.short)
    spec, unread = _spec(folder)
    damage += [unread] if unread is not None and unread not in damage else []
    return Source(
        folder=folder,
        state=status.read(folder),
        spec=spec,
        settings=contents.known(folder, contents.SPEC),
        plan=contents.known(folder, contents.PLAN) | {"phases": results.predicted_phases(folder)},
        job=contents.known(folder, contents.JOB),
        rows=tuple(results.steps(folder)),
        events=tuple(events.read(folder)),
        memory=tuple(records(folder)),
        measured=results.measured(folder),
        ran_out=ran_out(folder),
        predicted=None if spec is None else _predicted(assess.going_on(spec) if results.was_restored(folder) else spec),
        damage=tuple(damage),
    )


def _spec(folder: Path) -> tuple[RunSpec | None, str | None]:
    try:
        return contents.spec_of(folder), None
    except contents.BadRecord as bad:
        return None, bad.short


def _predicted(spec: RunSpec) -> Predicted | None:
    try:
        if spec.judges_no_model or findings.errors(spec):
            return None
        estimate = assess.estimated(spec)
        return Predicted(estimate=estimate, columns=assess.broken_down(spec, estimate))
    except LauncherError:  # The run needs an extension that is not installed here.
        return None
