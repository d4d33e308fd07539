"""A rehearsal with the run that it is of: as text, and as the document of ``launch rehearse --json``."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.base.files import JsonObject
from launcher.preflight.assess import Assessment, as_json
from launcher.preflight.evidence import Measured
from launcher.rehearsing.result import Phase, Rehearsal
from launcher.rehearsing.text import as_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """The answer; ``print`` shows what ``launch rehearse`` prints.

    Attributes:
        rehearsal: What was measured.
        assessment: The run, judged, with this rehearsal as evidence.
    """

    rehearsal: Rehearsal
    assessment: Assessment

    @property
    def verdict(self) -> Measured:
        """The measured verdict: ``fits``, ``tight``, ``does_not_fit``, or ``unknown`` where it decides nothing."""
        return self.rehearsal.worst.verdict

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of the rank that needs the most, each with ``predicted`` and ``measured``."""
        return self.rehearsal.worst.phases

    def as_dict(self) -> JsonObject:
        """The document of ``launch rehearse --json`` (docs/contract.md)."""
        return {"schema": 1, "rehearse": self.rehearsal.as_dict(), "check": as_json(self.assessment)}

    def as_text(self, width: int = 80) -> str:
        """The text on a terminal of ``width`` columns."""
        return as_text(self.rehearsal, self.assessment, width)

    def __str__(self) -> str:
        return self.as_text()
