"""The result of a rehearsal as data, and as the part ``rehearse`` of the document of ``launch rehearse --json``."""

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
    """Bytes at the peak of a phase in the four usual counters; None if unknown."""

    allocated_bytes: int | None = None  # Allocated from torch's allocator; on the CPU the bytes of live tensors.
    # The least with which the allocator does not run out. It is measured only on the CPU, where it equals the allocated
    # bytes; a caching allocator does not show it.
    needed_bytes: int | None = None
    reserved_bytes: int | None = None  # Reserved by the caching allocator.
    device_bytes: int | None = None  # Used by the process.


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase of a step: the estimate and the measurement of the same model on the same device."""

    phase: str
    predicted: Counters
    measured: Counters

    @property
    def error(self) -> float | None:
        """Predicted / measured allocated bytes - 1; None if either is unknown."""
        return Pair(self.predicted.allocated_bytes, self.measured.allocated_bytes).error

    def as_dict(self) -> JsonObject:
        """The phase with the allocated bytes repeated, as in docs/contract/documents.md."""
        own = {"predicted_bytes": self.predicted.allocated_bytes, "measured_bytes": self.measured.allocated_bytes}
        return {**asdict(self), **own}


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """One model that was built and trained."""

    layers: int  # Layers of the model.
    rank_layers: int  # Layers that the rank runs.
    phases: tuple[Phase, ...]  # The measurements.
    static_bytes: int | None  # Allocated between two steps.
    step_seconds: float | None  # The median of the steps that were only timed; None if there was none.
    ran_out: bool  # True if it ran out of memory.
    folder: str  # Its files, with its log.

    def as_dict(self) -> JsonObject:
        """As JSON."""
        return {**asdict(self), "phases": [phase.as_dict() for phase in self.phases]}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRehearsed:
    """The result for one rank."""

    rank: int  # The rank of the run.
    stage: int  # Its pipeline stage.
    rank_layers: int  # Layers that it runs in the whole model.
    # Phases of the whole model, or of the only depth that was built; measured, or extrapolated from two depths.
    phases: tuple[Phase, ...]
    fullest: str | None  # The phase with the most allocated bytes; None if nothing was measured.
    piles: tuple[PileRow, ...]  # The piles in that phase.
    step_seconds: float | None  # Time of the computation alone; None if it was not timed.
    built: tuple[Built, ...]  # The models that were built, the shallowest first.
    extrapolated: bool  # True if ``phases`` are extrapolated from two depths.
    whole: bool  # False if they are of a single depth that is not the model's.
    # The whole model's estimate relative to the extrapolation from the estimates of the two depths, minus one.
    bent: float | None
    verdict: Measured  # The measured verdict for the device of the run.
    evidence: Evidence  # The result as a later run reads it.

    @property
    def ran_out(self) -> bool:
        """True if it ran out of memory."""
        return any(built.ran_out for built in self.built)

    def as_dict(self) -> JsonObject:
        """As JSON."""
        phases, built = [phase.as_dict() for phase in self.phases], [built.as_dict() for built in self.built]
        return {**asdict(self), "phases": phases, "built": built}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The result of a rehearsal: the rank that needed the most, and all rehearsed ranks."""

    ranks: tuple[RankRehearsed, ...]  # In the order in which they were rehearsed.
    world: int  # Number of ranks of the run.
    stands_in: bool  # True if a processor stood in for the run's GPU.
    method: str  # How memory was measured.
    tokens: int  # Tokens per step, over all ranks.
    covers: bool  # True if the rank with the largest estimate is among them.

    @property
    def worst(self) -> RankRehearsed:
        """The rank that ran out of memory, else the one with the highest measurement."""
        return max(self.ranks, key=lambda one: (one.ran_out, one.evidence.measured_bytes or 0))

    @property
    def evidence(self) -> Evidence:
        """The evidence for a later run; partial if other ranks may need more."""
        return replace(self.worst.evidence, partial=self.worst.evidence.partial or not self.covers)

    @property
    def step_seconds(self) -> float | None:
        """Computation time of the slowest timed rank, for which the others wait; None if none was timed."""
        return max((one.step_seconds for one in self.ranks if one.step_seconds is not None), default=None)

    def as_dict(self) -> JsonObject:
        """The part ``rehearse`` of the document: the worst rank, and all of them."""
        worst = {**self.worst.as_dict(), "evidence": asdict(self.evidence)}
        own = {name: getattr(self, name) for name in ("world", "stands_in", "method", "tokens", "covers")}
        return {**worst, **own, "ranks": [one.as_dict() for one in self.ranks]}


_KEPT = 3  # Newest rehearsals of one run whose files are kept; each has a specification and a log.


def new_folder(spec: RunSpec) -> Path:
    """A new folder for a rehearsal's files, below the folder of its answer. Raises OSError if it cannot be written."""
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
    """The stored document: the answer, and the part of it that a later run needs."""
    part = rehearsal.as_dict()
    return {"schema": 1, "rehearse": part, "evidence": part["evidence"]}


def keep(folder: Path, rehearsal: Rehearsal) -> None:
    """Store an answer in a folder, a run's own or a Slurm job's. Raises OSError if it cannot be written."""
    files.write_text_atomically(folder / evidence.RESULT, json.dumps(as_dict(rehearsal)) + "\n")


def keep_as_evidence(spec: RunSpec, rehearsal: Rehearsal) -> None:
    """Store an answer where ``check`` and ``run`` find it for its run.

    A whole measurement gives a verdict for a device of any size. A measurement that ran out on a smaller device, or
    measured too little, does not replace it, unless its versions differ or it ran out of what had been enough.
    """
    before, now, place = evidence.read(spec), rehearsal.evidence, evidence.place(spec)
    if before is not None and before.versions == now.versions and before.is_whole and not now.is_whole:
        enough = before.used_bytes or 0
        if not (now.ran_out and now.device_bytes is not None and now.device_bytes >= enough):
            return
    place.mkdir(parents=True, exist_ok=True)
    keep(place, rehearsal)


def note_submitted(spec: RunSpec, directory: Path) -> None:
    """Record the run directory of a rehearsal submitted to Slurm. Raises OSError if it cannot be written."""
    place = evidence.place(spec)
    place.mkdir(parents=True, exist_ok=True)
    files.write_atomically(place / evidence.SUBMITTED, {"directory": str(directory)})


def read(folder: Path) -> Rehearsal | None:
    """The answer in a folder; None if there is none yet, or if it is from another version."""
    content = files.read_json(folder / evidence.RESULT) or {}
    try:
        return typed.read(Rehearsal, content.get("rehearse"))
    except typed.Unfit:
        return None
