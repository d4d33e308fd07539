"""The answer of ``launch why``: as data, and as the document of ``--json`` (docs/contract/documents.md)."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.job.memory import OutOfMemory, PileRow

type Cause = Literal["out_of_memory", "rank_killed", "hang", "nan", "time_limit", "preempted", "disk", "error", "none"]

OTHER_PROCESSES = "other_processes"  # Memory of the device held by processes that are not part of the run.


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where in the run it ended; None means unknown, or all."""

    rank: int | None = None  # The rank of the job.
    phase: str | None = None  # The phase of a step, as ``launch check`` names it, or ``evaluation``.
    step: int | None = None  # The step in progress.
    layer: int | None = None  # The number of the block.
    node: str | None = None  # The name of the machine.

    @classmethod
    def of(cls, oom: OutOfMemory) -> "Where":
        """Where a run ran out of memory."""
        return cls(rank=oom.rank, phase=oom.phase, step=oom.step, layer=oom.layer, node=oom.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A line of a file that supports the answer."""

    file: str  # Its path, relative to the run directory if below it.
    line: int | None  # Counted from 1; None if the whole file is meant, or has no lines.
    text: str  # An excerpt or summary.


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOut:
    """One thing that the user can do."""

    command: str  # The command to paste.
    overrides: tuple[str, ...] = ()  # The settings in it.
    text: str = ""  # What it does, or costs.
    # What the worst rank then needs, judged with the measured piles; None if not applicable.
    peak_bytes: int | None = None
    speed: float | None = None  # Its tokens a second over those of the run; None if unknown.

    def as_dict(self) -> JsonObject:
        """A fix as in ``launch check --json``, with the command to paste."""
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
    directory: Path  # Its folder.
    state: str  # As ``launch status`` shows it.
    cause: Cause  # In one word; ``none`` if nothing went wrong.
    said: Sequence[str]  # Sentences for the user; the first is the answer.
    where: Where = Where()  # Where it ended.
    pile: str | None = None  # The pile that grew, or was asked for; None if unknown or not applicable.
    piles: Sequence[PileRow] = ()  # Predicted and measured piles.
    evidence: Sequence[Evidence] = ()  # Files that support the answer.
    ways: Sequence[WayOut] = ()  # What would help, the cheapest first.
    ways_title: str = "what to do:"  # The heading above them.
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
