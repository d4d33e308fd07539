"""The state of a run as its files tell it: ended, or not begun, or left to Slurm, which knows more of a job that lives.

What a copy says of a job is about its original (``launcher.rundir.home``): the copy itself is ``prepared``. A file that
cannot be read is the run's reason, and its state ``unreadable`` where that file would have told it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.job import events
from launcher.rundir import contents, failure, home, keeper, names, state

_NOT_SUBMITTED = "recorded, but not submitted: `launch resume {}` submits it"

_GROWING = ("metrics.jsonl", events.FILE)
"""Files that the rows of runs are read from, and that may be missing."""

_FULL_BYTES = 1 << 16
"""Of a disk with less than this left, a file of state or a log may not have been written."""

_TAKES_ITS_PLACE = "`launch resume {}` tries again, and a corrected run of this name takes its place"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the files of a run say of its state.

    Attributes:
        word: The state by the files alone.
        reason: Why it is so.
        content: ``state.json``, where there is one.
        on_slurm: True if Slurm knows more.
    """

    word: state.State
    reason: str | None
    content: dict[str, Any] | None = None
    on_slurm: bool = False


def may_live(run: Path) -> bool:
    """False if ``state.json``, the only file that is opened, says that the run has ended, or it was never submitted."""
    content = contents.known(run, contents.STATE)
    return not _has_ended(content) if content else contents.exists(run, state.SUBMISSION)


def told(run: Path) -> Told:
    """Read the files of a run; those that cannot be read are its reason."""
    try:
        content = contents.read(run, contents.STATE)
        submission = contents.read(run, state.SUBMISSION) or {}
        there = None if _has_ended(content) else home.original(run)
        if there is not None and (content or submission):
            return Told(word="prepared", reason=_copied(run, there, content))
        word, reason = _from_files(run, content, submission)
    except contents.BadRecord as bad:
        return Told(word="unreadable", reason=bad.short)
    on_slurm = not _has_ended(content) and submission.get("kind") == "slurm"
    reason = "; ".join(text for text in (reason, damage(run)) if text) or None
    return Told(word=word, reason=reason, content=content, on_slurm=on_slurm)


def _copied(run: Path, there: Path, content: dict[str, Any] | None) -> str:
    was = "queued" if content is None else content["state"]
    return f"a copy of {there}, which was {was}: `launch resume {names.typed(run)}` goes on with the copy by itself"


def damage(run: Path) -> str | None:
    """What is wrong with the files that a run is resumed by or told by; None where nothing is."""
    try:
        for name in (contents.SPEC, contents.JOB):
            contents.read(run, name)
        for name in _GROWING:
            contents.check_kind(run, name)
    except contents.BadRecord as bad:
        return bad.short
    return None


def _has_ended(content: dict[str, Any] | None) -> bool:
    return content is not None and content["state"] in state.ENDED


def _from_files(
    run: Path, content: dict[str, Any] | None, submission: Mapping[str, Any]
) -> tuple[state.State, str | None]:
    if (kept := keeper.told(run, content, submission)) is not None:
        word, reason = kept
        return (word, _lost(run, failure.never_began(run) if content is None else reason)) if word == "lost" else kept
    if content is None:
        return _not_begun(run, submission)
    return content["state"], content.get("reason")


def _lost(run: Path, reason: str) -> str:
    """Why a process is gone that could not write it, with the disk where that is full now."""
    free = shutil.disk_usage(run).free
    return f"{reason}; the disk is full: it has {free >> 10} KiB left" if free < _FULL_BYTES else reason


def _not_begun(run: Path, submission: Mapping[str, Any]) -> tuple[state.State, str | None]:
    """State and reason of a run whose job has written nothing yet."""
    job_id = submission.get("job_id")
    if job_id is not None:
        return "queued", None
    if (failed := contents.read(run, state.NOT_SUBMITTED)) is not None:
        return "failed", f"its submission failed: {failed['reason']}; {_TAKES_ITS_PLACE.format(names.typed(run))}"
    return "prepared", _NOT_SUBMITTED.format(names.typed(run)) if submission else None
