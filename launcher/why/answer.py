"""The answer of ``launch why``: as data, and as the document of ``--json`` (docs/contract/documents.md)."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.job.memory import OutOfMemory, PileRow

type Cause = Literal["out_of_memory", "rank_killed", "hang", "nan", "time_limit", "preempted", "disk", "error", "none"]

OTHER_PROCESSES = "other_processes"  # Memory of the device that belongs to processes which are none of the run's.


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The place of an end in the run; None is unknown, or all of them."""

    rank: int | None = None  # Of the job.
    phase: str | None = None  # Of a step, as ``launch check`` names it, or ``evaluation``.
    step: int | None = None  # That was being done.
    layer: int | None = None  # The number of the block.
    node: str | None = None  # The name of the machine.

    @classmethod
    def of(cls, oom: OutOfMemory) -> "Where":
        """The place of an end of memory."""
        return cls(rank=oom.rank, phase=oom.phase, step=oom.step, layer=oom.layer, node=oom.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A line of a file that says so."""

    file: str  # Its path, below the run directory as from there.
    line: int | None  # Counted from 1; None where the file as a whole says it, or has no lines.
    text: str  # What stands there, in short.


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Something to do."""

    command: str  # To paste.
    overrides: tuple[str, ...] = ()  # The settings in it.
    text: str = ""  # What it does, or costs.
    # What the worst rank then needs, judged with the measured piles; None where that is no question.
    peak_bytes: int | None = None
    speed: float | None = None  # Its tokens a second over those of the run; None is unknown.

    def as_dict(self) -> JsonObject:
        """A fix as ``launch check --json`` has it, with the line to paste."""
        return {
            "overrides": list(self.overrides),
            "peak_bytes": self.peak_bytes,
            "speed": self.speed,
            "cost": self.text,
            "command": self.command,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Why a run ended, or that it has not."""

    id: str  # The run's name.
    directory: Path  # Where it lies.
    state: str  # As ``launch status`` shows it.
    cause: Cause  # In one word; ``none`` where nothing went wrong.
    said: Sequence[str]  # Sentences for a person, the first of which is the answer.
    where: Where = Where()  # The place of the end.
    pile: str | None = None  # Which pile grew, or was asked for; None where that is no question, or unknown.
    piles: Sequence[PileRow] = ()  # Predicted beside measured.
    evidence: Sequence[Evidence] = ()  # Where that stands.
    ways: Sequence[Way] = ()  # What would help, the cheapest first.
    ways_title: str = "what to do:"  # Above them.
    earlier: Sequence[str] = ()  # How earlier attempts of the run ended, a sentence each, oldest first.

    def as_dict(self) -> JsonObject:
        """The part ``why`` of the document."""
        return {
            "id": self.id,
            "directory": str(self.directory),
            "state": self.state,
            "cause": self.cause,
            "where": asdict(self.where),
            "pile": self.pile,
            "piles": [asdict(row) for row in self.piles],
            "text": list(self.said),
            "evidence": [asdict(each) for each in self.evidence],
            "fixes": [way.as_dict() for way in self.ways],
            "attempts": list(self.earlier),
        }
