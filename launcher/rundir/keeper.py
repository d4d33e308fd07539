"""The keeper of a run on a machine: whether it is alive, and its heartbeat for hosts that cannot see the process.

The keeper is the process that waits for the run's end and records how it ended; its agent is torchrun. The heartbeat is
a file in the run's folder that the first node renews. Its age is measured only by the clock of the file system, against
a file that the reader writes next to it, since the clocks of two hosts may differ.
"""

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.base.process import Process, speaks_of
from launcher.base.units import duration
from launcher.rundir import run_names
from launcher.rundir.state import SUBMISSION, State

HEARTBEAT = "heartbeat.json"
FRESH_S = 60.0
"""Age at which a heartbeat counts as stale: many beats, and longer than NFS may cache attributes."""

_BEAT_S = 5.0
_LOOK_S = 0.5
_GONE = "the process that managed the job on this machine is gone"
_NEVER_STARTED = "the process that should have managed the job on this machine is gone, and never started"


def state_of(run: Path, content: Mapping[str, Any] | None, submission: Mapping[str, Any]) -> tuple[State, str] | None:
    """State and reason of a run on a machine if its process contradicts its files; None if the files are right.

    ``content`` is ``state.json``, if the run has one; ``submission`` is empty if the run was not submitted.
    """
    if content is None:
        is_local = submission.get("kind") == "local"
        return _of(run, submission.get("process"), None, "queued", _NEVER_STARTED) if is_local else None
    if content["state"] != "running" or "keeper" not in content:
        return None
    return _of(run, content["keeper"], content.get("agent"), "running", _GONE)


def _of(run: Path, keeper: object, agent: object, word: State, gone: str) -> tuple[State, str] | None:
    process, torchrun = Process.recorded(keeper), Process.recorded(agent)
    if process is not None and not process.visible:
        return from_elsewhere(run, word, process)
    if process is not None and process.alive:
        return None
    if torchrun is not None and torchrun.alive:
        return "running", f"{gone}; its ranks still run: `launch cancel {run_names.typed(run)}` ends them"
    return "lost", gone


def from_elsewhere(run: Path, word: State, process: Process | None = None) -> tuple[State, str]:
    """State and reason, from its heartbeat, of a run whose processes this host cannot see."""
    seconds = heartbeat_age(run)
    renewed = seconds is not None and seconds < FRESH_S
    if process is not None and process.before_a_reboot and not renewed:
        return "lost", f"{process.host} has been rebooted since, which ended the run"
    who = "its processes are" if process is None else f"{process} is"
    if renewed:
        return word, f"{who} not visible from here, but the heartbeat is being renewed"
    silent = "has no heartbeat" if seconds is None else f"its last heartbeat is {duration(seconds)} old"
    way = f"if it is gone, `launch resume {run_names.typed(run)}` continues the run"
    return "not_visible", f"{who} not visible from here, and {silent}; {way}"


def without_slurm(run: Path, word: State, silent: str) -> tuple[State, str]:
    """State and reason of a Slurm run if Slurm does not answer: by its heartbeat, or else with Slurm's error."""
    if word != "running" or heartbeat_age(run) is None:
        return word, silent
    seen, reason = from_elsewhere(run, word)
    return seen, f"{silent}; {reason}"


def agent(run: Path, content: Mapping[str, Any]) -> Process | None:
    """A run's torchrun if it is alive, visible from here and started for this run, as a record may name any process."""
    process = Process.recorded(content.get("agent"))
    return process if process is not None and process.alive and speaks_of(process.pid, run) else None


def reads_requests(content: Mapping[str, Any]) -> bool:
    """True if a keeper may live that looks for a request to end in the run's folder."""
    process = Process.recorded(content.get("keeper"))
    return not content or (process is not None and (process.alive or not process.visible))


def is_elsewhere(run: Path, content: Mapping[str, Any]) -> bool:
    """True if the run is kept where this host cannot look."""
    submission = files.read_json(run / SUBMISSION) or {}
    process = Process.recorded(content.get("keeper", submission.get("process")))
    return process is not None and not process.visible


def begin_heartbeat(run: Path, keeper: Process) -> None:
    """Write the first heartbeat of the process that is or will be the run's keeper."""
    files.write_atomically(run / HEARTBEAT, {"process": keeper.as_dict()})


@contextlib.contextmanager
def heartbeat(run: Path) -> Iterator[None]:
    """Renew the run's heartbeat from another thread for the duration of the block."""
    over = threading.Event()
    begin_heartbeat(run, Process.here())
    beating = threading.Thread(target=_beat, args=(run, over), daemon=True)
    beating.start()
    try:
        yield
    finally:
        over.set()
        beating.join()
        end_heartbeat(run)


def end_heartbeat(run: Path) -> None:
    """Remove the heartbeat, because the run no longer has a keeper."""
    with contextlib.suppress(OSError):
        (run / HEARTBEAT).unlink(missing_ok=True)


def _beat(run: Path, over: threading.Event) -> None:
    while not over.wait(_BEAT_S):
        with contextlib.suppress(OSError):  # An unreachable or full file system may recover.
            os.utime(run / HEARTBEAT)


def heartbeat_age(run: Path) -> float | None:
    """Absolute seconds between the run's heartbeat and now, since a clock may have been set; None without one."""
    beat = _stamp(run)
    return None if beat is None else abs(_now(run) - beat)


def is_fresh(run: Path) -> bool:
    """True if the run's heartbeat is recent, so that it has a keeper, on whatever host."""
    seconds = heartbeat_age(run)
    return seconds is not None and seconds < FRESH_S


def is_renewed(run: Path) -> bool:
    """True if the run's heartbeat is renewed while we watch; a copied one never changes."""
    first, until = _stamp(run), time.monotonic() + 2 * _BEAT_S
    if first is None or not is_fresh(run):
        return False
    while time.monotonic() < until:
        time.sleep(_LOOK_S)
        if _stamp(run) != first:
            return True
    return False


def _stamp(run: Path) -> float | None:
    try:
        with files.opened(run / HEARTBEAT) as file:  # Opening makes NFS ask its server; a stat alone may not.
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return None


def _now(run: Path) -> float:
    """The time by the clock of the folder's file system; this host's own if nothing can be written."""
    try:
        with tempfile.NamedTemporaryFile(dir=run, prefix=".clock.") as file:
            file.write(b"\n")
            file.flush()
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()
