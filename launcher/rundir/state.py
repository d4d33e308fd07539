"""The state of a run on disk, in files because a job outlives its launcher."""

import time
from pathlib import Path
from typing import Literal

from launcher.base import machine, secret
from launcher.base.files import read_json, write_atomically
from launcher.job import events

type State = Literal[
    "prepared", "queued", "running", "requeued", "finished", "failed", "cancelled", "lost", "not_visible", "unreadable"
]

ENDED: tuple[State, ...] = ("finished", "failed", "cancelled", "lost", "unreadable")
"""States after which nothing more happens by itself; ``unreadable``: a damaged file hides the state."""

ACTIVE: tuple[State, ...] = ("queued", "running", "requeued", "not_visible")
"""States in which a job waits, runs, or may run."""

CANCEL_REQUEST = "cancel_requested"
SWEEP = "sweep.json"  # In the folder of a sweep, whose sub-folders are its runs.
SUBMISSION = "submission.json"
"""``kind``; ``job_id``, null while unknown; for Slurm jobs the ``comment``, which is submitit's folder; for local runs
the ``process`` that was started."""

NOT_SUBMITTED = "not_submitted.json"
"""The ``reason`` why submitting a new run created no job: the run has not started, and will not by itself."""


_AN_END: tuple[State, ...] = ("finished", "failed", "cancelled", "requeued")


def put(run: Path, state: State, *, reason: str | None = None, **facts: object) -> None:
    """Set the run's state, on the job's first node; the start and end of an attempt also become events."""
    said = reason and secret.redacted(reason)  # A worker's error may repeat a URL with its password.
    write_atomically(run / "state.json", {"state": state, "reason": said, "time": time.time(), **facts})
    if state in _AN_END:
        events.add(run, "end", said or state, step=None, state=state, cause=facts.get("cause"), node=machine.node())
    elif state == "running":
        events.add(run, "running", said or state, step=None, node=machine.node())


def forget_ending(run: Path) -> None:
    """Prepare a run that has ended for another submission; a submission without a recorded id stays."""
    old = ["state.json", CANCEL_REQUEST, NOT_SUBMITTED]
    if (read_json(run / SUBMISSION) or {}).get("job_id") is not None:
        old.append(SUBMISSION)
    for name in old:
        (run / name).unlink(missing_ok=True)
