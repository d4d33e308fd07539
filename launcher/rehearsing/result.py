"""The answer of a rehearsal as data, and as the part ``rehearse`` of the document of ``launch rehearse --json``."""

import contextlib
import json
import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path

from launcher.base import files, typed
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.units import Pair
from launcher.job.memory import PileRow
from launcher.preflight import evidence
from launcher.preflight.evidence import Evidence, Measured
from launcher.spec import RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Bytes at the peak of a phase in the four counters that people read; None is not known."""

    allocated_bytes: int | None = None  # From torch's allocator; on the CPU the bytes of live tensors.
    # The least with which the allocator does not run out: measured on the CPU alone, where it is the allocated bytes,
    # since a caching allocator does not tell.
    needed_bytes: int | None = None
    reserved_bytes: int | None = None  # By the caching allocator.
    device_bytes: int | None = None  # Of the process.


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase of a step: the estimate and the measurement of the same model on the same device."""

    phase: str
    predicted: Counters
    measured: Counters

    @property
    def error(self) -> float | None:
        """Predicted over measured allocated bytes, less one."""
        return Pair(self.predicted.allocated_bytes, self.measured.allocated_bytes).error

    def as_dict(self) -> JsonObject:
        """With the allocated bytes once more, as docs/contract/documents.md has them."""
        own = {"predicted_bytes": self.predicted.allocated_bytes, "measured_bytes": self.measured.allocated_bytes}
        return {**asdict(self), **own}


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """One model that was built and trained."""

    layers: int  # Of the model.
    rank_layers: int  # Of those, the rank's.
    phases: tuple[Phase, ...]  # What was measured of it.
    static_bytes: int | None  # Allocated between two steps.
    step_seconds: float | None  # The median of the steps that were only timed; None where there was none.
    ran_out: bool  # True where memory ended first.
    folder: str  # Its files, with its log.

    def as_dict(self) -> JsonObject:
        """As JSON."""
        return {**asdict(self), "phases": [phase.as_dict() for phase in self.phases]}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRehearsed:
    """One rank."""

    rank: int  # Of the run's.
    stage: int  # Its pipeline stage.
    rank_layers: int  # Layers that it runs in the whole model.
    # Of the whole model, or of the only depth that was built: measured, or extrapolated from two depths.
    phases: tuple[Phase, ...]
    fullest: str | None  # The phase with the most allocated bytes; None where nothing was measured.
    piles: tuple[PileRow, ...]  # In that phase.
    step_seconds: float | None  # Of the compute alone; None where it was not timed.
    built: tuple[Built, ...]  # The models that were built, the shallowest first.
    extrapolated: bool  # True if ``phases`` follow from two depths.
    whole: bool  # False where they are of one depth, which is not the model's.
    # By which the estimate of the whole model differs from what its estimates of the two depths extrapolate to.
    bent: float | None
    verdict: Measured  # Measured, against the device of the run.
    evidence: Evidence  # The same as a later run reads it.

    @property
    def ran_out(self) -> bool:
        """True where memory ended first."""
        return any(built.ran_out for built in self.built)

    def as_dict(self) -> JsonObject:
        """As JSON."""
        phases, built = [phase.as_dict() for phase in self.phases], [built.as_dict() for built in self.built]
        return {**asdict(self), "phases": phases, "built": built}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The answer: the rank that needed the most, and all that were rehearsed."""

    ranks: tuple[RankRehearsed, ...]  # In the order in which they were rehearsed.
    world: int  # Ranks of the run.
    stands_in: bool  # True if a processor stood in for the run's GPU.
    method: str  # How memory was measured.
    tokens: int  # Of a step, over all ranks.
    covers: bool  # True if the rank is among them that needs the most by the estimate.

    @property
    def worst(self) -> RankRehearsed:
        """The rank whose memory ended, else the one that measured the most."""
        return max(self.ranks, key=lambda one: (one.ran_out, one.evidence.measured_bytes or 0))

    @property
    def evidence(self) -> Evidence:
        """The evidence for a later run: partial where other ranks need more."""
        return replace(self.worst.evidence, partial=self.worst.evidence.partial or not self.covers)

    @property
    def step_seconds(self) -> float | None:
        """The compute of the slowest rank that was timed, for which the others wait."""
        return max((one.step_seconds for one in self.ranks if one.step_seconds is not None), default=None)

    def as_dict(self) -> JsonObject:
        """The part ``rehearse`` of the document: the worst rank, and all of them."""
        worst = {**self.worst.as_dict(), "evidence": asdict(self.evidence)}
        own = {name: getattr(self, name) for name in ("world", "stands_in", "method", "tokens", "covers")}
        return {**worst, **own, "ranks": [one.as_dict() for one in self.ranks]}


_KEPT = 3  # Rehearsals of one run whose files stay, the newest: each holds a specification and a log.


def new_folder(spec: RunSpec) -> Path:
    """A new folder for a rehearsal's files, below the place of its answer. Raises OSError if it cannot be written."""
    place = evidence.place(spec)
    place.mkdir(parents=True, exist_ok=True)
    old = sorted(path for path in place.iterdir() if path.is_dir())
    for path in old[: len(old) + 1 - _KEPT]:
        shutil.rmtree(path, ignore_errors=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1, 1000):
        folder = place / (stamp if number == 1 else f"{stamp}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("a thousand rehearsals in one second")


def as_dict(rehearsal: Rehearsal) -> JsonObject:
    """The document that is kept: the answer, and what a later run needs of it."""
    part = rehearsal.as_dict()
    return {"schema": 1, "rehearse": part, "evidence": part["evidence"]}


def keep(folder: Path, rehearsal: Rehearsal) -> None:
    """Keep an answer in a folder: a run's own, or the one of a Slurm job. Raises OSError if it cannot be written."""
    files.write_text_atomically(folder / evidence.RESULT, json.dumps(as_dict(rehearsal)) + "\n")


def keep_as_evidence(spec: RunSpec, rehearsal: Rehearsal) -> None:
    """Keep an answer where ``check`` and ``run`` of its run find it.

    A whole measurement decides for a device of any size. One that ended on a smaller device, or measured too little,
    does not take its place, unless it was of other versions or ran out of what had been enough.
    """
    before, now, place = evidence.read(spec), rehearsal.evidence, evidence.place(spec)
    if before is not None and before.versions == now.versions and before.is_whole and not now.is_whole:
        enough = before.used_bytes or 0
        if not (now.ran_out and now.device_bytes is not None and now.device_bytes >= enough):
            return
    place.mkdir(parents=True, exist_ok=True)
    keep(place, rehearsal)


def note_submitted(spec: RunSpec, directory: Path) -> None:
    """Note the run directory of a rehearsal that is a Slurm job. Raises OSError if it cannot be written."""
    place = evidence.place(spec)
    place.mkdir(parents=True, exist_ok=True)
    files.write_atomically(place / evidence.SUBMITTED, {"directory": str(directory)})


def read(folder: Path) -> Rehearsal | None:
    """The answer in a folder; None where there is none yet, or one of another version."""
    content = files.read_json(folder / evidence.RESULT) or {}
    try:
        return typed.read(Rehearsal, content.get("rehearse"))
    except typed.Unfit:
        return None
