"""The end of a job, judged by the worker's outcome, by who asked for the stop, else by ``launcher.rundir.failure``.

A job is put back into the queue unless too many attempts in a row left no new checkpoint, and without a node that has
failed twice or whose GPU is broken.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.base.errors import SubmitError
from launcher.base.files import JsonObject
from launcher.rundir import attempts, failure, measured_run, results, run_names, state
from launcher.slurm.jobs import SlurmRefused
from launcher.submission.processes import SlurmPlace

_EARLY_S = 60
"""Slurm may send the signal that comes before a time limit up to a minute early (sbatch(1), ``--signal``)."""

_HEARD_S = 5.0
"""Seconds in which the other nodes' parts, whose ranks have lost a peer, end and leave what tells who failed first."""

_POLL_S = 0.1
_MOST_FAILURES = 2  # Of one node; then the job is put back without it.


def conclude(directory: Path, returncode: int, place: SlurmPlace | None) -> str | None:
    """Write down how the job ended; the reason where it failed."""
    results.add_losses(directory)
    outcome = files.read_json(directory / "logs" / "outcome.json") or {}
    stopped = outcome.get("state") == "interrupted"
    facts = {} if place is None else {"job_id": place.job_id}
    way = f"; `launch resume {run_names.typed(directory)}` goes on from step {outcome.get('step')}"
    if asked_to_end(directory) or (stopped and place is None):
        state.put(directory, "cancelled", reason=f"stopped{way if outcome.get('step') else ''}", **facts)
        return None
    if returncode == 0 and not stopped:
        state.put(directory, "finished", **facts)
        measured_run.enter(directory)
        return None
    measured_run.enter(directory, finished=False)
    if place is not None and (stopped or place.told_to_save.is_set() or place.told_to_end.is_set()):
        return _stopped(directory, outcome, place)
    if place is not None:
        _hear_others(directory, place)
    found = failure.explain(directory, returncode, () if place is None else place.hosts)
    if place is not None and found.transient:
        return _requeue_failed(directory, found, place)
    state.put(directory, "failed", reason=found.text, **facts, **found.facts)
    return found.text


def interrupt(directory: Path) -> None:
    """Let the outcome say that the run is to go on, since what comes after its last step was stopped."""
    path = directory / "logs" / "outcome.json"
    files.write_atomically(path, {**(files.read_json(path) or {}), "state": "interrupted"})


def _stopped(directory: Path, outcome: JsonObject, place: SlurmPlace) -> str | None:
    """The job was told to stop and has: by the early signal, else by Slurm itself, which then knows what follows."""
    step = f" after step {outcome['step']}" if "step" in outcome else ""
    if place.told_to_save.is_set():
        left, margin = place.seconds_left(), int(spec(directory)["cluster"]["save_margin_s"])
        near = left is not None and left <= margin + _EARLY_S
        reason, facts = f"{'its time limit came near' if near else 'preempted'}{step}", {"cause": "preempted"}
        return _put_back(directory, reason, place, {"cause": "time_limit"} if near else facts)
    _leave_to_slurm(directory, f"stopped by Slurm{step}", place)
    return None


def _leave_to_slurm(directory: Path, reason: str, place: SlurmPlace) -> None:
    state.put(directory, "running", reason=reason, job_id=place.job_id)


def _hear_others(directory: Path, place: SlurmPlace) -> None:
    deadline = time.monotonic() + _HEARD_S
    others = [directory / "logs" / f"node{number}.{place.attempt}.failed" for number in range(1, len(place.hosts))]
    while not all(path.exists() for path in others) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _requeue_failed(directory: Path, found: failure.Failure, place: SlurmPlace) -> str | None:
    """Requeue a job that its surroundings have ended, without the node that is to blame if it may be avoided."""
    if found.node is None:
        return _put_back(directory, found.text, place, found.facts)
    node, times = found.node, attempts.blame(directory, found.node)
    reason = found.text if node in found.text else f"{found.text} (on {node})"
    if times < _MOST_FAILURES and not found.broken:
        return _put_back(directory, reason, place, found.facts)
    because = f"failed {times} times" if times > 1 else "failed"
    return _put_back(directory, reason, place, found.facts, without=node, because=because)


def _put_back(
    directory: Path,
    reason: str,
    place: SlurmPlace,
    facts: Mapping[str, Any],
    *,
    without: str | None = None,
    because: str = "",
) -> str | None:
    """Requeue the job, ``without`` a node where it can do so, unless that has led nowhere too often: the reason."""
    limit, record = requeues(directory), attempts.recorded(directory)
    fruitless = 1 if record is None else record.fruitless_now(directory)
    if fruitless > limit:
        seconds = attempts.checkpoint_seconds(directory)
        took = f"; a checkpoint took {seconds:.0f} s" if seconds is not None and place.told_to_save.is_set() else ""
        in_a_row = f"{fruitless} attempts in a row left no new checkpoint (cluster.requeues={limit})"
        reason = f"{reason}; not requeued: {in_a_row if limit else 'cluster.requeues=0'}{took}"
        state.put(directory, "failed", reason=reason, job_id=place.job_id, **facts)
        return reason
    if without is not None and (obstacle := place.without([without])) is not None:
        reason, without = f"{reason}; {without} {because}, and cannot be left out: {obstacle}", None
    elif without is not None:
        reason = f"{reason}; {without} {because} and is excluded from the requeue"
    state.put(directory, "requeued", reason=reason, job_id=place.job_id, **facts)
    try:
        place.requeue()
    except (SubmitError, SlurmRefused) as error:
        if place.told_to_end.is_set():  # It may have been put back already, which ended us.
            _leave_to_slurm(directory, reason, place)
            return None
        reason = f"{reason}; it could not be requeued: {error}"
        state.put(directory, "failed", reason=reason, job_id=place.job_id, **facts)
        return reason
    if without is not None:
        _exclude(directory, reason, place, without, facts)
    return None


def _exclude(directory: Path, reason: str, place: SlurmPlace, node: str, facts: Mapping[str, Any]) -> None:
    try:
        place.exclude([node])
    except (SubmitError, SlurmRefused) as error:
        reason = f"{reason}, which Slurm refused: {error}"
        state.put(directory, "requeued", reason=reason, job_id=place.job_id, **facts)


def asked_to_end(directory: Path) -> bool:
    """True if someone has asked for the job's end."""
    return (directory / state.CANCEL_REQUEST).exists()


def spec(directory: Path) -> JsonObject:
    """The run's specification as written."""
    return files.read_json(directory / "spec.json") or {}


def requeues(directory: Path) -> int:
    """``cluster.requeues``: attempts in a row without a new checkpoint that are allowed."""
    return int(spec(directory)["cluster"]["requeues"])
