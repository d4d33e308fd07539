"""The run that is asked about: where it lies, how it stands, and what its files say, read once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from launcher.base.files import JsonObject
from launcher.rundir import contents, failure, status
from launcher.rundir.failure import Failure
from launcher.rundir.state import RunState
from launcher.spec import RunSpec
from launcher.why import predicted
from launcher.why.answer import Answer, Cause, Way
from launcher.why.ways_out import Takes, resume

_EXIT = 1
"""Of an agent whose exit status nobody has noted: that of a rank that failed."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A run.

    Attributes:
        run: Its directory.
        name: The word that finds it from here.
        row: Its state.
        takes: True of words that a resumed run takes.
    """

    run: Path
    name: str
    row: RunState
    takes: Takes = field(default=lambda words: True)

    @cached_property
    def content(self) -> JsonObject:
        """``state.json``, as far as it can be read."""
        return contents.known(self.run, contents.STATE)

    @cached_property
    def settings(self) -> RunSpec | None:
        """Its settings, where this version reads them."""
        try:
            return contents.spec_of(self.run)
        except contents.BadRecord:
            return None

    @cached_property
    def spec(self) -> RunSpec | None:
        """The same of a run whose memory can be estimated."""
        return None if self.settings is None or not predicted.is_judged(self.settings) else self.settings

    @cached_property
    def plan(self) -> JsonObject:
        """``plan.json``, as far as it can be read."""
        return contents.known(self.run, contents.PLAN)

    @cached_property
    def errors(self) -> list[JsonObject]:
        """The errors of its ranks, that of the failure first."""
        return failure.written_errors(self.run)

    @cached_property
    def failure(self) -> Failure:
        """Why its last attempt failed, by the files that are left of it."""
        return failure.explain(self.run, _EXIT)

    @property
    def reason(self) -> str:
        """The reason of its state, which may be empty."""
        return self.row.reason or ""

    @property
    def saved(self) -> int | None:
        """The step of its newest checkpoint."""
        return self.row.progress.checkpoint_step

    def resume(self, *words: str, text: str = "") -> Way:
        """A line that goes on with it."""
        return Way(command=resume(self.name, words), overrides=words, text=text)

    def from_here(self) -> str:
        """Where a resumed run goes on, as a clause."""
        return "it goes on from the start" if not self.saved else f"it goes on from the checkpoint of step {self.saved}"

    def answer(self, cause: Cause, said: Sequence[str], **facts: Any) -> Answer:
        """An answer about it."""
        return Answer(id=self.row.id, directory=self.run, state=self.row.state, cause=cause, said=tuple(said), **facts)


def subject(run: Path, folder: Path, takes: Takes | None = None) -> Subject:
    """The run of a directory.

    Args:
        run: The run directory.
        folder: The working folder, from which it is named.
        takes: True of words that a resumed run takes; None takes all.
    """
    found = Subject(run=run, name=status.name_of(run, folder), row=status.read(run))
    return found if takes is None else Subject(run=run, name=found.name, row=found.row, takes=takes)
