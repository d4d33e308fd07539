"""How a job ended: by the worker's outcome, by who asked for the stop, else by ``launcher.rundir.failure``.

Finished, cancelled, failed, or back into the queue, unless too many attempts in a row left no new checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launcher import files
from launcher.errors import SubmitError
from launcher.rundir import attempts, failure, losses, state
from launcher.slurm.client import SlurmRefused
from launcher.submission.place import SlurmPlace

_EARLY_S = 60
"""Slurm may send the signal that comes before a time limit up to a minute early (sbatch(1), ``--signal``)."""


def conclude(directory: Path, returncode: int, place: SlurmPlace | None) -> str | None:
    """Write down how the job ended; the reason where it failed."""
    losses.add_losses(directory)
    outcome = files.read_json(directory / "logs" / "outcome.json") or {}
    stopped = outcome.get("state") == "interrupted"
    facts = {} if place is None else {"job_id": place.job_id}
    saved = f"; `launch resume {directory.name}` goes on from step {outcome['step']}" if outcome.get("step") else ""
    if asked_to_end(directory) or (stopped and place is None):
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
        left, margin = place.seconds_left(), int(spec(directory)["cluster"]["save_margin_s"])
        near = left is not None and left <= margin + _EARLY_S
        return _put_back(directory, f"{'its time limit came near' if near else 'preempted'}{step}", place)
    _leave_to_slurm(directory, f"stopped by Slurm{step}", place)
    return None


def _leave_to_slurm(directory: Path, reason: str, place: SlurmPlace) -> None:
    state.put(directory, "running", reason=reason, job_id=place.job_id)


def _put_back(directory: Path, reason: str, place: SlurmPlace) -> str | None:
    """Requeue the job, unless that has led nowhere too often; the reason where it is given up."""
    limit, record = requeues(directory), attempts.recorded(directory)
    fruitless = 1 if record is None else record.fruitless_now(directory)
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


def asked_to_end(directory: Path) -> bool:
    """True if someone has asked for the job's end."""
    return (directory / state.CANCEL_REQUEST).exists()


def spec(directory: Path) -> dict[str, Any]:
    """The run's specification as written."""
    return files.read_json(directory / "spec.json") or {}


def requeues(directory: Path) -> int:
    """``cluster.requeues``: attempts in a row without a new checkpoint that are allowed."""
    return int(spec(directory)["cluster"]["requeues"])
