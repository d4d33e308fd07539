"""One node's part of a job: put the node's facts into argv, start it, wait, and write down how it ended.

The first node alone writes ``state.json``; the others leave a file where their part fails, for which the first looks.
The job's ranks are asked to save by SIGUSR2 (before a time limit, a preemption, or after ``launch cancel``) and again
every two seconds, since a rank may not have a handler yet. When the agent has ended, :func:`_conclude` decides by the
outcome that the worker wrote, by who asked for the stop, and else by ``launcher.rundir.failure``: finished, cancelled,
failed, or back into the queue, unless too many attempts in a row left no new checkpoint. A node that finds that Slurm
has started the job again elsewhere ends its ranks and writes nothing, because the state is no longer its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher import files
from launcher.errors import JobFailed, SubmitError
from launcher.job.torchrun import HOST, IS_HOST, PORT, RENDEZVOUS
from launcher.rundir import attempts, failure, losses, state
from launcher.slurm.client import SlurmRefused
from launcher.submission import preparing

_POLL_S = 0.1
_REMIND_S = 2.0
"""Between two signals to ranks that may not have installed a handler yet."""

_EARLY_S = 60
"""Slurm may send the signal that comes before a time limit up to a minute early (sbatch(1), ``--signal``)."""

_GRACE_S = 20.0
"""Seconds in which ranks find out by themselves that another has failed; one that hangs, or is stopped, does not."""

_LOOK_S = 2.0
"""Between two looks at whether the job has begun again elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmPlace:
    """This node's part in a Slurm job.

    Attributes:
        job_id: As ``scontrol requeue`` takes it.
        number: Of this node, counted from 0; the first alone writes the run's state.
        attempt: Differs for every allocation of the job.
        told_to_save: Set by the signal that comes before a time limit or a preemption.
        told_to_end: Set by SIGTERM, with which Slurm ends a job; what follows is Slurm's to say.
        requeue: Puts the job back into the queue.
        seconds_left: How long the job may still run, if Slurm says so.
    """

    job_id: str
    number: int
    attempt: str
    told_to_save: threading.Event
    told_to_end: threading.Event
    requeue: Callable[[], None] = field(repr=False)
    seconds_left: Callable[[], float | None] = field(repr=False)


def run(directory: Path, *, facts: Mapping[str, str] | None = None, place: SlurmPlace | None = None) -> None:
    """Run the recorded job of this node to its end.

    Args:
        directory: The run directory.
        facts: Values for the placeholders that only a node knows (``launcher.job.torchrun``).
        place: The node's part in a Slurm job; None on this machine.

    Raises:
        JobFailed: The job ended with an error; the message is the worker's own last one.
    """
    job = json.loads((directory / "job.json").read_text())
    if place is not None and place.number:
        _other_node(directory, job, facts or {}, place)
        return
    _forget_last_attempt(directory)
    reason = _first_node(directory, job, facts or {}, place)
    if reason is not None:
        raise JobFailed(reason)


def _first_node(directory: Path, job: dict[str, Any], facts: Mapping[str, str], place: SlurmPlace | None) -> str | None:
    if place is not None and (reason := _stuck(directory, _limit(directory), place)) is not None:
        state.put(directory, "failed", reason=reason, job_id=place.job_id)
        return reason
    attempt = str(os.getpid()) if place is None else place.attempt
    before = preparing.job(directory, job, attempt)
    if before is not None:
        with _started(directory, before, facts, place) as process:
            _running(directory, process, place, reason="making token ids of the data")
            preparing.wait(process, lambda: _told_to_stop(directory, place))
        if process.returncode:
            return _not_prepared(directory, process.returncode, attempt, place)
        if place is None and _asked_to_end(directory):  # The signal came when that process was already ending.
            return _conclude(directory, process.returncode, place)
    with _started(directory, job, facts, place) as process:
        _running(directory, process, place)
        superseded = _wait(process, directory, place)
    _end_leftovers(process.pid, directory)
    return None if superseded else _conclude(directory, process.returncode, place)


def _running(
    directory: Path, process: subprocess.Popen[bytes], place: SlurmPlace | None, reason: str | None = None
) -> None:
    """Write down what runs now; on this machine end it where the request to end came before anybody could find it."""
    if place is not None:
        state.put(directory, "running", reason=reason, job_id=place.job_id)
        return
    state.put(directory, "running", reason=reason, keeper=os.getpid(), process_group=process.pid)
    if _asked_to_end(directory):
        process.terminate()


def _asked_to_end(directory: Path) -> bool:
    return (directory / state.CANCEL_REQUEST).exists()


def _told_to_stop(directory: Path, place: SlurmPlace | None) -> bool:
    """True if the job has been told to save or end, cancelled, or begun again elsewhere."""
    if place is None:
        return False  # The signal itself reaches the process.
    told = place.told_to_save.is_set() or place.told_to_end.is_set()
    return told or _asked_to_end(directory) or attempts.superseded(directory, place.attempt)


def _not_prepared(directory: Path, returncode: int, attempt: str, place: SlurmPlace | None) -> str | None:
    """The job ends before its ranks began: by an error in the data, or because it was told to."""
    if place is not None and attempts.superseded(directory, place.attempt):
        return None
    reason = None if _asked_to_end(directory) else preparing.failure(directory, attempt, returncode)
    if reason is None:
        return _conclude(directory, returncode, place)
    state.put(directory, "failed", reason=reason, **({} if place is None else {"job_id": place.job_id}))
    return reason


def _other_node(directory: Path, job: dict[str, Any], facts: Mapping[str, str], place: SlurmPlace) -> None:
    """The first node judges the job: this one says that its ranks have failed, and leaves it at that.

    Raises:
        JobFailed: The data cannot be used; no rank has begun.
    """
    if not preparing.arrived(directory, place.attempt, place.number, lambda: _told_to_stop(directory, place)):
        return
    with _started(directory, job, facts, place) as process:
        superseded = _wait(process, directory, place)
    _end_leftovers(process.pid, directory)
    if process.returncode and not superseded:
        name = f"node{place.number}.{place.attempt}.failed"
        files.write_atomically(directory / "logs" / name, {"returncode": process.returncode})


@contextlib.contextmanager
def _started(
    directory: Path, job: dict[str, Any], facts: Mapping[str, str], place: SlurmPlace | None
) -> Iterator[subprocess.Popen[bytes]]:
    name = f"node{place.number}" if place is not None and place.number else "node"
    with (directory / "logs" / f"{name}.out").open("ab") as out, (directory / "logs" / f"{name}.err").open("ab") as err:
        yield subprocess.Popen(
            [_fill(text, facts) for text in job["argv"]],
            env={**os.environ, **job["environment"]},
            cwd=job["working_directory"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,  # So that a Ctrl-C meant for the launcher does not reach the ranks.
            preexec_fn=None if place is None else _ignore_user_signal,
        )


def _ignore_user_signal() -> None:
    """Let torchrun survive SIGUSR2, which Slurm sends to all processes: an ignored signal stays so across exec.

    Its ranks begin in the same way, and install a handler of their own when they can save.
    """
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _wait(process: subprocess.Popen[bytes], directory: Path, place: SlurmPlace | None) -> bool:
    """Wait for the agent; meanwhile pass on the request to save, and end it when others have failed or replaced it.

    Returns:
        True if the job has begun again elsewhere, so that its state is no longer ours to write.
    """
    reminded, looked, failed = 0.0, 0.0, None
    while process.poll() is None:  # Not wait(): a signal handler that polls would deadlock on its lock.
        time.sleep(_POLL_S)
        if place is None:
            continue
        now = time.monotonic()
        asked = place.told_to_save.is_set() or _asked_to_end(directory)
        if asked and now - reminded > _REMIND_S:
            reminded = now
            _ask_to_save(process, own=_spec(directory).get("script") is None)
        if place.number == 0 and failed is None and _failed(directory, place):
            failed = now
        if failed is not None and now - failed > _GRACE_S:
            process.kill()
        if now - looked > _LOOK_S:
            looked = now
            if attempts.superseded(directory, place.attempt):
                process.kill()
                process.wait()
                return True
    return False


def _ask_to_save(process: subprocess.Popen[bytes], *, own: bool) -> None:
    """Send our own ranks SIGUSR2; torchrun sends those of a user's script SIGTERM."""
    if not own:
        process.terminate()
        return
    with contextlib.suppress(OSError):
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(pid), signal.SIGUSR2)


def _failed(directory: Path, place: SlurmPlace) -> bool:
    """True if another node's part has failed, or a rank has written its error."""
    logs = directory / "logs"
    return any(logs.glob(f"node*.{place.attempt}.failed")) or any(logs.glob("error.rank*.json"))


def _spec(directory: Path) -> dict[str, Any]:
    return files.read_json(directory / "spec.json") or {}


def _limit(directory: Path) -> int:
    return int(_spec(directory)["cluster"]["requeues"])


def _stuck(directory: Path, limit: int, place: SlurmPlace) -> str | None:
    """The reason why a job that Slurm has started again should not run once more; None where it should."""
    before = files.read_json(directory / "state.json") or {}
    tried = attempts.begin(directory, place.attempt)
    if tried.fruitless <= limit:
        return None
    last = f": {before['reason']}" if before.get("reason") else ""
    return f"{tried.fruitless} attempts in a row left no new checkpoint (cluster.requeues={limit}){last}"


def _conclude(directory: Path, returncode: int, place: SlurmPlace | None) -> str | None:
    """Write down how the job ended; the reason where it failed."""
    losses.add_losses(directory)
    outcome = files.read_json(directory / "logs" / "outcome.json") or {}
    stopped = outcome.get("state") == "interrupted"
    facts = {} if place is None else {"job_id": place.job_id}
    saved = f"; `launch resume {directory.name}` goes on from step {outcome['step']}" if outcome.get("step") else ""
    if _asked_to_end(directory) or (stopped and place is None):
        state.put(directory, "cancelled", reason=f"stopped{saved}", **facts)
        return None
    if returncode == 0 and not stopped:
        state.put(directory, "finished", **facts)
        return None
    if place is not None and (stopped or place.told_to_save.is_set() or place.told_to_end.is_set()):
        return _told(directory, outcome, place)
    found = failure.explain(directory, returncode)
    if place is not None and found.transient:
        return _put_back(directory, found.text, place)
    state.put(directory, "failed", reason=found.text, **facts)
    return found.text


def _told(directory: Path, outcome: dict[str, Any], place: SlurmPlace) -> str | None:
    """The job was told to stop and has: by the early signal, else by Slurm itself, which then knows what follows."""
    step = f" after step {outcome['step']}" if "step" in outcome else ""
    if place.told_to_save.is_set():
        left, margin = place.seconds_left(), int(_spec(directory)["cluster"]["save_margin_s"])
        near = left is not None and left <= margin + _EARLY_S
        return _put_back(directory, f"{'its time limit came near' if near else 'preempted'}{step}", place)
    _leave_to_slurm(directory, f"stopped by Slurm{step}", place)
    return None


def _leave_to_slurm(directory: Path, reason: str, place: SlurmPlace) -> None:
    state.put(directory, "running", reason=reason, job_id=place.job_id)


def _put_back(directory: Path, reason: str, place: SlurmPlace) -> str | None:
    """Requeue the job, unless that has led nowhere too often; the reason where it is given up."""
    limit, record = _limit(directory), files.read_json(directory / attempts.FILE) or {}
    fruitless = attempts.Attempts(**record).fruitless_now(directory)
    if fruitless > limit:
        seconds = attempts.checkpoint_seconds(directory)
        took = f"; a checkpoint took {seconds:.0f} s" if seconds is not None and place.told_to_save.is_set() else ""
        in_a_row = f"{fruitless} attempts in a row left no new checkpoint (cluster.requeues={limit})"
        reason = f"{reason}; not requeued: {in_a_row if limit else 'cluster.requeues=0'}{took}"
        state.put(directory, "failed", reason=reason, job_id=place.job_id)
        return reason
    state.put(directory, "requeued", reason=reason, job_id=place.job_id)
    try:
        place.requeue()
    except (SubmitError, SlurmRefused) as error:
        if place.told_to_end.is_set():  # It may have been put back already, which ended us.
            _leave_to_slurm(directory, reason, place)
            return None
        reason = f"{reason}; it could not be requeued: {error}"
        state.put(directory, "failed", reason=reason, job_id=place.job_id)
        return reason
    return None


def _fill(text: str, facts: Mapping[str, str]) -> str:
    for placeholder in (HOST, PORT, IS_HOST, RENDEZVOUS):
        if placeholder in facts:
            text = text.replace(placeholder, facts[placeholder])
    return text


def _forget_last_attempt(directory: Path) -> None:
    """Remove the files of the last attempt, by which a resumed run must not be judged."""
    logs = directory / "logs"
    old = [*logs.glob("error.rank*.json"), *logs.glob("node*.failed"), logs / "outcome.json", *logs.glob("node*.err")]
    for path in (*old, directory / state.CANCEL_REQUEST):
        path.unlink(missing_ok=True)


def _end_leftovers(process_group: int, directory: Path) -> None:
    """Kill the ranks that are left: they have lost their agent.

    Torchrun gives each rank a session of its own, so the ranks are known by the variable that the job gave them.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process_group, signal.SIGKILL)
    mark = f"LAUNCH_RUN={directory}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                os.kill(int(path.parent.name), signal.SIGKILL)
