"""Decides how a job ended: by the worker's outcome, by who asked it to stop, or by ``launcher.rundir.failure``.

A job is requeued unless too many attempts in a row left no new checkpoint; a node that has failed twice, or whose GPU
is broken, is excluded.
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

_WAIT_FOR_OTHERS_S = 5.0
"""Seconds to wait until the other nodes, whose ranks have lost a peer, have ended and left files about who failed."""

_POLL_S = 0.1
_MOST_FAILURES = 2  # Failures of one node after which the job is requeued without it.


def conclude(directory: Path, returncode: int, place: SlurmPlace | None) -> str | None:
    """Record how the job ended; returns the reason if it failed."""
    results.add_losses(directory)
    outcome = files.read_json(directory / "logs" / "outcome.json") or {}
    stopped = outcome.get("state") == "interrupted"
    facts = {} if place is None else {"job_id": place.job_id}
    way = f"; `launch resume {run_names.typed(directory)}` continues from step {outcome.get('step')}"
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
        _wait_for_others(directory, place)
    found = failure.explain(directory, returncode, () if place is None else place.hosts)
    if place is not None and found.transient:
        return _requeue_failed(directory, found, place)
    state.put(directory, "failed", reason=found.text, **facts, **found.facts)
    return found.text


def interrupt(directory: Path) -> None:
    """Mark the run as interrupted, because the work after its last step was stopped."""
    path = directory / "logs" / "outcome.json"
    files.write_atomically(path, {**(files.read_json(path) or {}), "state": "interrupted"})


def _stopped(directory: Path, outcome: JsonObject, place: SlurmPlace) -> str | None:
    """Handle a job that stopped when told to: by the early signal, or by Slurm itself, which then decides on it."""
    step = f" after step {outcome['step']}" if "step" in outcome else ""
    if place.told_to_save.is_set():
        left, margin = place.seconds_left(), int(spec(directory)["cluster"]["save_margin_s"])
        near = left is not None and left <= margin + _EARLY_S
        reason, facts = f"{'its time limit came near' if near else 'preempted'}{step}", {"cause": "preempted"}
        return _requeue(directory, reason, place, {"cause": "time_limit"} if near else facts)
    _leave_to_slurm(directory, f"stopped by Slurm{step}", place)
    return None


def _leave_to_slurm(directory: Path, reason: str, place: SlurmPlace) -> None:
    state.put(directory, "running", reason=reason, job_id=place.job_id)


def _wait_for_others(directory: Path, place: SlurmPlace) -> None:
    deadline = time.monotonic() + _WAIT_FOR_OTHERS_S
    others = [directory / "logs" / f"node{number}.{place.attempt}.failed" for number in range(1, len(place.hosts))]
    while not all(path.exists() for path in others) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _requeue_failed(directory: Path, found: failure.Failure, place: SlurmPlace) -> str | None:
    """Requeue a job that failed for external reasons, without the faulty node if the job can avoid it."""
    if found.node is None:
        return _requeue(directory, found.text, place, found.facts)
    node, times = found.node, attempts.blame(directory, found.node)
    reason = found.text if node in found.text else f"{found.text} (on {node})"
    if times < _MOST_FAILURES and not found.broken:
        return _requeue(directory, reason, place, found.facts)
    because = f"failed {times} times" if times > 1 else "failed"
    return _requeue(directory, reason, place, found.facts, without=node, because=because)


def _requeue(
    directory: Path,
    reason: str,
    place: SlurmPlace,
    facts: Mapping[str, Any],
    *,
    without: str | None = None,
    because: str = "",
) -> str | None:
    """Requeue the job, if possible ``without`` a node; returns the reason if it has failed too often, or cannot."""
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
        reason, without = f"{reason}; {without} {because}, and cannot be excluded: {obstacle}", None
    elif without is not None:
        reason = f"{reason}; {without} {because} and is excluded from the requeue"
    state.put(directory, "requeued", reason=reason, job_id=place.job_id, **facts)
    try:
        place.requeue()
    except (SubmitError, SlurmRefused) as error:
        if place.told_to_end.is_set():  # Slurm may have requeued it already, which is why it ended this process.
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
    """True if someone has asked the job to end."""
    return (directory / state.CANCEL_REQUEST).exists()


def spec(directory: Path) -> JsonObject:
    """The run's specification as recorded."""
    return files.read_json(directory / "spec.json") or {}


def requeues(directory: Path) -> int:
    """``cluster.requeues``: the number of attempts in a row allowed without a new checkpoint."""
    return int(spec(directory)["cluster"]["requeues"])
