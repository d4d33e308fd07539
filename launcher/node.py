"""What runs on one node of the job: put the node's facts into argv, start it, wait, and write down how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher import state
from launcher.errors import JobFailed
from launcher.torchrun import HOST, IS_HOST, PORT, RENDEZVOUS

_POLL_S = 0.1
_EXIT_CODE = re.compile(r"^\s*(?:rank\s*:\s*(?P<rank>\d+)|exitcode\s*:\s*(?P<code>-?\d+))", re.MULTILINE)


def run(directory: Path, *, facts: Mapping[str, str] | None = None, first: bool = True) -> None:
    """Run the recorded job of this node to its end.

    Args:
        directory: The run directory.
        facts: Values for the placeholders that only a node knows (``launcher.torchrun``).
        first: Whether this is the first node, which alone writes the run's state.

    Raises:
        JobFailed: The job ended with an error; the message is the worker's own last one.
    """
    job = json.loads((directory / "job.json").read_text())
    _forget_last_attempt(directory)
    argv = [_fill(text, facts or {}) for text in job["argv"]]
    logs = directory / "logs"
    with (logs / "node.out").open("ab") as out, (logs / "node.err").open("ab") as err:
        process = subprocess.Popen(
            argv,
            env={**os.environ, **job["environment"]},
            cwd=job["working_directory"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,  # So that a Ctrl-C meant for the launcher does not reach the ranks.
        )
    if first:
        state.put(directory, "running", keeper=os.getpid(), process_group=process.pid)
    while process.poll() is None:  # Not wait(): a signal handler that polls would deadlock on its lock.
        time.sleep(_POLL_S)
    _end_leftovers(process.pid, directory)
    _conclude(directory, process.returncode, first)


def _conclude(directory: Path, returncode: int, first: bool) -> None:
    outcome = state.read_json(directory / "logs" / "outcome.json") or {}
    cancelled = (directory / state.CANCEL_REQUEST).exists()
    reason = None if returncode == 0 else failure(directory, returncode)
    if cancelled or outcome.get("state") == "interrupted":
        ending: state.State = "cancelled"
        saved = outcome.get("step")
        reason = f"stopped; `launch resume {directory.name}` goes on from step {saved}" if saved else "stopped"
    else:
        ending = "failed" if reason else "finished"
    if first:
        state.put(directory, ending, reason=reason)
    if ending == "failed":
        raise JobFailed(reason)


def failure(directory: Path, returncode: int) -> str:
    """Why the job failed: the first error that a rank wrote, else the signal that ended one, else the tail of a log."""
    logs = directory / "logs"
    written = sorted(logs.glob("error.rank*.json"), key=lambda path: path.stat().st_mtime_ns)
    for path in written:
        content: dict[str, Any] = state.read_json(path) or {}
        if "message" in content:
            return f"rank {path.stem.removeprefix('error.rank')}: {content['message']}"
    codes = _exit_codes(logs / "node.err")
    for rank, code in codes:
        if code < 0:
            name = signal.Signals(-code).name
            hint = ": the kernel may have been out of memory" if name == "SIGKILL" else ""
            return f"rank {rank} was ended by {name}{hint}"
    ranks = sorted(logs.glob("ranks/*/attempt_*/*/stderr.log"), key=lambda path: path.stat().st_mtime_ns)
    for path in [*reversed(ranks), logs / "node.err"]:
        text = path.read_text(errors="replace") if path.exists() else ""
        lines = [line for line in text.splitlines() if line.strip()]
        if lines:
            return f"{lines[-1].strip()} (exit status {returncode}; {path})"
    return f"exit status {returncode} without a message; see {logs}"


def _exit_codes(path: Path) -> list[tuple[str, int]]:
    """Rank and exit code of each failure that torchrun's last report lists."""
    text = path.read_text(errors="replace") if path.exists() else ""
    found: list[tuple[str, int]] = []
    rank = "?"
    for match in _EXIT_CODE.finditer(text[-20000:]):
        if match["rank"] is not None:
            rank = match["rank"]
        else:
            found.append((rank, int(match["code"])))
    return found


def _fill(text: str, facts: Mapping[str, str]) -> str:
    for placeholder in (HOST, PORT, IS_HOST, RENDEZVOUS):
        if placeholder in facts:
            text = text.replace(placeholder, facts[placeholder])
    return text


def _forget_last_attempt(directory: Path) -> None:
    """A resumed run must not be judged by what its last attempt wrote."""
    for path in [*(directory / "logs").glob("error.rank*.json"), directory / "logs" / "outcome.json"]:
        path.unlink(missing_ok=True)
    for name in ("node.err", state.CANCEL_REQUEST):
        for path in (directory / name, directory / "logs" / name):
            path.unlink(missing_ok=True)


def _end_leftovers(process_group: int, directory: Path) -> None:
    """Leave no rank behind: what is left of the job has lost its agent.

    Torchrun gives each rank a session of its own, so the ranks are known by the variable that the job gave them.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process_group, signal.SIGKILL)
    mark = f"LAUNCH_RUN={directory}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                os.kill(int(path.parent.name), signal.SIGKILL)
