"""The state of a run on disk. Files, since a job outlives its launcher."""

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
"""States in which nothing more is to be waited for; ``unreadable``: a file of the run is damaged and hides it."""

ACTIVE: tuple[State, ...] = ("queued", "running", "requeued", "not_visible")
"""States in which a job waits, runs, or may run."""

CANCEL_REQUEST = "cancel_requested"
SWEEP = "sweep.json"  # Lies in the folder of a sweep, whose sub-folders are its runs.
SUBMISSION = "submission.json"
"""``kind``, ``job_id``, null while it is not known yet, of Slurm's jobs the ``comment``, submitit's folder, and of
runs on a machine the ``process`` that was started there."""

NOT_SUBMITTED = "not_submitted.json"
"""The ``reason`` why a new run's submission made no job: the run has never started, nor will it by itself."""


_AN_END: tuple[State, ...] = ("finished", "failed", "cancelled", "requeued")


def put(run: Path, state: State, *, reason: str | None = None, **facts: object) -> None:
    """Set the run's state, on the job's first node; begin and end of an attempt become events, too."""
    said = reason and secret.hidden(reason)  # A worker's error may repeat an address with its password.
    write_atomically(run / "state.json", {"state": state, "reason": said, "time": time.time(), **facts})
    if state in _AN_END:
        events.add(run, "end", said or state, step=None, state=state, cause=facts.get("cause"), node=machine.node())
    elif state == "running":
        events.add(run, "running", said or state, step=None, node=machine.node())


def forget_ending(run: Path) -> None:
    """Make a run that has ended ready to be submitted again; a submission whose id nobody has noted stays."""
    old = ["state.json", CANCEL_REQUEST, NOT_SUBMITTED]
    if (read_json(run / SUBMISSION) or {}).get("job_id") is not None:
        old.append(SUBMISSION)
    for name in old:
        (run / name).unlink(missing_ok=True)
