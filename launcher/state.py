"""The state of a run on disk: who wrote what, and what follows from it. Files, since a job outlives its launcher."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

type State = Literal["prepared", "queued", "running", "requeued", "finished", "failed", "cancelled", "lost"]

ENDED: tuple[State, ...] = ("finished", "failed", "cancelled", "lost")
CANCEL_REQUEST = "cancel_requested"
SWEEP = "sweep.json"
"""Lies in the folder of a sweep, whose sub-folders are its runs."""


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


def write_atomically(path: Path, content: dict[str, Any]) -> None:
    """Write JSON under a temporary name and move it into place: a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content) + "\n")
    temporary.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON file's mapping, or None where there is none (yet)."""
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(path.read_text())
        if isinstance(content, dict):
            return content
    return None


def put(run: Path, state: State, *, reason: str | None = None, **facts: object) -> None:
    """Set the run's state; called by the process that runs the job on its first node."""
    write_atomically(run / "state.json", {"state": state, "reason": reason, "time": time.time(), **facts})


def forget_ending(run: Path) -> None:
    """Make a run that has ended ready to be submitted again."""
    for name in ("state.json", CANCEL_REQUEST):
        (run / name).unlink(missing_ok=True)


def read(run: Path) -> RunState:
    """The state of a run directory."""
    submission = read_json(run / "submission.json") or {}
    content = read_json(run / "state.json")
    if content is None:
        state: State = "queued" if submission else "prepared"
        if submission.get("kind") == "local" and not _alive(int(submission["job_id"])):
            state = "lost"
        content = {"state": state}
    if content["state"] == "running" and "keeper" in content and not _alive(content["keeper"]):
        content = {"state": "lost", "reason": "the process that kept the job on this machine is gone"}
    return RunState(
        id=f"{run.parent.name}/{run.name}" if (run.parent / SWEEP).is_file() else run.name,
        directory=str(run),
        state=content["state"],
        job_id=submission.get("job_id"),
        step=last_step(run),
        reason=content.get("reason"),
    )


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


def find(names: list[str], folder: Path) -> list[Path]:
    """Run directories by name or path, of a sweep all; without names all below ``runs/``, oldest first.

    Raises:
        FileNotFoundError: With the name that is no run.
    """
    root = folder / "runs"
    if not names:
        found = [path.parent for form in ("*/spec.json", f"*/{SWEEP}") for path in root.glob(form)]
        return [
            run for path in sorted(found, key=lambda path: (path.stat().st_mtime, path.name)) for run in _runs(path)
        ]
    runs: list[Path] = []
    for name in names:
        candidates = [found for path in (root / name, folder / name) if (found := _runs(path.absolute()))]
        if not candidates:
            raise FileNotFoundError(name)
        runs += candidates[0]
    return runs


def _runs(path: Path) -> list[Path]:
    """The run of a run directory, or the runs of a sweep's; none where it is neither."""
    if (path / SWEEP).is_file():
        return sorted(found.parent for found in path.glob("*/spec.json"))
    return [path] if (path / "spec.json").is_file() else []


def _alive(pid: int) -> bool:
    """Whether a process of this machine lives; a zombie that nobody has waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        with contextlib.suppress(OSError):
            os.kill(pid, 0)
            return not Path("/proc/self").exists()
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
