"""The state of a run on disk. Files, since a job outlives its launcher."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from launcher.files import read_json, write_atomically

type State = Literal["prepared", "queued", "running", "requeued", "finished", "failed", "cancelled", "lost"]

ENDED: tuple[State, ...] = ("finished", "failed", "cancelled", "lost")
CANCEL_REQUEST = "cancel_requested"
SWEEP = "sweep.json"
"""Lies in the folder of a sweep, whose sub-folders are its runs."""

SUBMISSION = "submission.json"
"""``kind``, ``job_id``, null while it is not known yet, and of Slurm's jobs the ``comment``, submitit's folder."""


NOT_SUBMITTED = "not_submitted.json"
"""The ``reason`` why a new run's submission made no job: the run has never started, nor will it by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """One run as ``launch status`` shows it."""

    id: str
    directory: str
    state: State
    job_id: str | None
    step: int | None
    reason: str | None

    def as_dict(self) -> dict[str, Any]:
        """The row of ``status --json``."""
        return {key: getattr(self, key) for key in ("id", "directory", "state", "job_id", "step", "reason")}


def put(run: Path, state: State, *, reason: str | None = None, **facts: object) -> None:
    """Set the run's state; called by the process that runs the job on its first node."""
    write_atomically(run / "state.json", {"state": state, "reason": reason, "time": time.time(), **facts})


def forget_ending(run: Path) -> None:
    """Make a run that has ended ready to be submitted again; a submission whose id nobody has noted stays."""
    old = ["state.json", CANCEL_REQUEST]
    if (read_json(run / SUBMISSION) or {}).get("job_id") is not None:
        old.append(SUBMISSION)
    for name in old:
        (run / name).unlink(missing_ok=True)


def last_step(run: Path) -> int | None:
    """The step of the last whole line of ``metrics.jsonl``."""
    try:
        with (run / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return int(json.loads(line)["step"])
    return None


def alive(pid: int) -> bool:
    """True if a process of this machine lives; a zombie that nobody has waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        with contextlib.suppress(OSError):
            os.kill(pid, 0)
            return not Path("/proc/self").exists()
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
