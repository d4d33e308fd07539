"""The run to explain: its folder, its state and the content of its files, each read once."""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any

from launcher.base import files, secret
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.terminal import visible
from launcher.rundir import contents, failure, output, run_names, status
from launcher.rundir.failure import Failure
from launcher.rundir.status import RunState
from launcher.spec import RunSpec
from launcher.why import comparison
from launcher.why.answer import Answer, Cause, Evidence, WayOut
from launcher.why.ways_out import Takes, resume

_EXIT = 1  # Assumed if no exit status was recorded: that of a failed rank.
_LONGEST = 200
_MOST_BYTES = 1 << 26
"""Bytes of a log that are searched; of a longer one only the end is read, and its lines have no numbers."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The run to explain."""

    run: Path  # Its directory.
    name: str  # The name by which commands find it from the working folder.
    row: RunState  # Its state.
    takes: Takes = field(default=lambda words: True)  # True for words that a resumed run accepts.

    @cached_property
    def content(self) -> JsonObject:
        """``state.json``, as far as it can be read."""
        return contents.known(self.run, contents.STATE)

    @cached_property
    def settings(self) -> RunSpec | None:
        """Its settings; None if this version cannot read them."""
        return contents.known_spec(self.run)

    @cached_property
    def spec(self) -> RunSpec | None:
        """Its settings; None unless its memory can be estimated."""
        return None if self.settings is None or not comparison.is_judged(self.settings) else self.settings

    @cached_property
    def plan(self) -> JsonObject:
        """``plan.json``, as far as it can be read."""
        return contents.known(self.run, contents.PLAN)

    @cached_property
    def errors(self) -> list[JsonObject]:
        """The errors of its ranks, the cause of the failure first."""
        return output.written_errors(self.run)

    @cached_property
    def failure(self) -> Failure:
        """Why its last attempt failed, from the files that it left."""
        return failure.explain(self.run, _EXIT)

    @property
    def slurm_logs(self) -> list[Path]:
        """The logs with Slurm's own messages."""
        return sorted((self.run / "logs" / "submitit").glob("*_log.err"))

    @property
    def reason(self) -> str:
        """The reason for its state, which may be empty."""
        return self.row.reason or ""

    @property
    def saved(self) -> int | None:
        """The step of its newest checkpoint; None if it has none."""
        return self.row.progress.checkpoint_step

    def resume(self, *words: str, text: str = "") -> WayOut:
        """A command that resumes it."""
        return WayOut(command=resume(self.name, words), overrides=words, text=text)

    def offer(self, words: str, text: str, *, when: object = True) -> list[WayOut]:
        """A list of one command that resumes it; empty unless ``when`` is true and a resumed run accepts the words."""
        changed = tuple(words.split())
        return [self.resume(*changed, text=text)] if when and self.takes(changed) else []

    def from_here(self) -> str:
        """Where a resumed run starts, as a clause."""
        where = "the start" if not self.saved else f"the checkpoint of step {self.saved}"
        return f"it continues from {where}"

    def answer(self, cause: Cause, said: Sequence[str], **facts: Any) -> Answer:
        """An answer about this run."""
        return Answer(id=self.row.id, directory=self.run, state=self.row.state, cause=cause, said=tuple(said), **facts)

    def evidence_of(self, name: str | Path, text: str, line: int | None = 1) -> Iterator[Evidence]:
        """A whole file of its directory, if it exists."""
        path = self.run / name
        if path.is_file():
            yield Evidence(file=self._named(path), line=line, text=_short(text))

    def evidence_in(self, name: str | Path, matches: str | Callable[[str], bool]) -> Iterator[Evidence]:
        """The last line of a file that matches a pattern or a function, if there is one."""
        path, test = self.run / name, matches if callable(matches) else _searching(matches)
        found: tuple[int | None, str] | None = None
        with contextlib.suppress(OSError), files.opened(path) as file:
            skipped = path.stat().st_size > _MOST_BYTES
            if skipped:
                file.seek(-_MOST_BYTES, 2)
            for number, raw in enumerate(file, 1):
                text = raw.decode(errors="replace").rstrip()
                if test(text):
                    found = (None if skipped else number, text)
        if found is not None:
            yield Evidence(file=self._named(path), line=found[0], text=_short(found[1]))

    def _named(self, path: Path) -> str:
        return str(path.relative_to(self.run)) if path.is_relative_to(self.run) else str(path)


def subject(run: Path, folder: Path, takes: Takes | None = None) -> Subject:
    """The run of a directory, named from the working folder; ``takes`` is true for words that a resumed run accepts."""
    found = Subject(run=run, name=run_names.name_of(run, folder), row=status.read(run))
    return found if takes is None else Subject(run=run, name=found.name, row=found.row, takes=takes)


def _searching(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern)
    return lambda text: compiled.search(text) is not None


def _short(text: str) -> str:
    line = visible(secret.redacted(" ".join(text.split())))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
