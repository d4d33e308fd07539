"""Who keeps a run on a machine, and what can be told of them from here.

A run on a machine has a keeper, the process that waits for its end and writes how it ended, and the keeper's agent,
torchrun. Both are recorded as a :class:`~launcher.base.process.Process`; older records hold a bare pid, which counts
only where that process was started for this run. What cannot be seen from here is told by the run's heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.base.process import Process, alive, is_pid, speaks_of
from launcher.base.units import duration
from launcher.rundir import lease, names
from launcher.rundir.state import SUBMISSION, State

_DIGITS = 10
"""Of the largest number of a process."""

_GONE = "the process that kept the job on this machine is gone"
_NEVER = "the process that was to keep the job on this machine is gone, and had not begun"


def told(run: Path, content: Mapping[str, Any] | None, submission: Mapping[str, Any]) -> tuple[State, str] | None:
    """State and reason of a run on a machine where its files do not tell; None where what they say holds.

    Args:
        run: The run directory.
        content: ``state.json``, where the run has one.
        submission: ``submission.json``; empty where the run was not submitted.
    """
    if content is None:
        if submission.get("kind") != "local":
            return None
        return _of(run, submission.get("process", submission.get("job_id")), None, "queued", _NEVER)
    if content["state"] != "running" or "keeper" not in content:
        return None
    return _of(run, content["keeper"], agent_of(content), "running", _GONE)


def agent_of(content: Mapping[str, Any]) -> object:
    """The record of torchrun in ``state.json``, of any version."""
    return content.get("agent", content.get("process_group"))


def _of(run: Path, keeper: object, agent: object, word: State, gone: str) -> tuple[State, str] | None:
    process = Process.recorded(keeper)
    if process is not None and not process.visible:
        return from_elsewhere(run, word, process)
    if _lives(run, keeper):
        return None
    if _lives(run, agent):
        return "running", f"{gone}; its ranks still run: `launch cancel {names.typed(run)}` ends them"
    return "lost", gone


def from_elsewhere(run: Path, word: State, process: Process | None = None) -> tuple[State, str]:
    """State and reason of a run that is kept where this host cannot look: by its heartbeat."""
    seconds = lease.age(run)
    renewed = seconds is not None and seconds < lease.FRESH_S
    if process is not None and process.before_a_reboot and not renewed:
        return "lost", f"{process.host} was started again since, which ended the run"
    who = "its processes are" if process is None else f"{process} is"
    if renewed:
        return word, f"{who} not visible from here, and keeps its heartbeat up"
    silent = "has no heartbeat" if seconds is None else f"its last heartbeat is {duration(seconds)} old"
    way = f"if it is gone, `launch resume {names.typed(run)}` goes on with the run"
    return "not_visible", f"{who} not visible from here, and {silent}; {way}"


def _lives(run: Path, record: object) -> bool:
    process = Process.recorded(record)
    if process is not None:
        return process.alive
    pid = int(record) if isinstance(record, str) and record.isdecimal() and len(record) <= _DIGITS else record
    return isinstance(pid, int) and is_pid(pid) and alive(pid) and speaks_of(pid, run)


def agent(run: Path, content: Mapping[str, Any]) -> Process | None:
    """Torchrun of a run on this machine, where it lives, is seen from here, and was started for this run.

    A record from elsewhere may name any process of this machine, with all that it is known by.
    """
    record = agent_of(content)
    if not _lives(run, record):
        return None
    process = Process.recorded(record) or Process.of(int(str(record)))
    return process if speaks_of(process.pid, run) else None


def without_slurm(run: Path, word: State, silent: str) -> tuple[State, str]:
    """State and reason of a run on Slurm where none answers, as on a host without one: by its heartbeat.

    Runs that wait have none, nor have those of older versions; for these the reason is Slurm's silence.
    """
    if word != "running" or lease.age(run) is None:
        return word, silent
    seen, reason = from_elsewhere(run, word)
    return seen, f"{silent}; {reason}"


def reads_requests(content: Mapping[str, Any]) -> bool:
    """True if the keeper looks for a request to end in the run's folder, and lives; those of older versions do not."""
    process = Process.recorded(content.get("keeper"))
    return not content or (process is not None and (process.alive or not process.visible))


def is_elsewhere(run: Path, content: Mapping[str, Any]) -> bool:
    """True if the run is kept where this host cannot look."""
    submission = files.read_json(run / SUBMISSION) or {}
    process = Process.recorded(content.get("keeper", submission.get("process")))
    return process is not None and not process.visible
