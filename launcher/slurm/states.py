"""Slurm's words for a job's state in ours, with the reason in one line."""

from __future__ import annotations

from typing import Literal

from launcher.slurm.jobs import QueuedJob

type Word = Literal["queued", "running", "requeued", "finished", "failed", "cancelled"]

_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
"""States of squeue(1), "JOB STATE CODES", in which a job has no nodes and will be started."""

_LIVE = frozenset({
    "RUNNING",
    "COMPLETING",
    "CONFIGURING",
    "SUSPENDED",
    "STOPPED",
    "SIGNALING",
    "STAGE_OUT",
    "RESIZING",
})
"""States in which it has nodes; every other one is an end."""

_PENDING = {
    "Resources": "waiting for free nodes",
    "Priority": "waiting behind jobs of higher priority",
    "BeginTime": "waiting for its start time",
    "Dependency": "waiting for another job",
    "JobArrayTaskLimit": "waiting for other points of its sweep",
    "JobHeldUser": "held: scontrol release lets it go",
    "JobHeldAdmin": "held by an administrator",
    "PartitionDown": "its partition is down",
    "PartitionTimeLimit": "its time limit is over the partition's, so it will never start",
    "PartitionNodeLimit": "it asks for more nodes than its partition gives, so it will never start",
    "ReqNodeNotAvail": "a node that it needs is not available",
    "launch failed requeued held": "held, because Slurm could not start it on its nodes: scontrol release lets it go",
}
"""Reasons of ``squeue`` for a job that waits, in words that say what to do; others are shown as they are."""

_ENDED = {
    "TIMEOUT": "its time limit ended it before it had saved; raise cluster.save_margin_s or cluster.time_limit_min",
    "OUT_OF_MEMORY": "the kernel killed it: out of host memory",
    "PREEMPTED": "preempted, and its partition or cluster.requeues does not put it back into the queue",
    "DEADLINE": "its deadline passed",
    "BOOT_FAIL": "a node did not boot",
    "COMPLETED": "the job ended without saying how",
}
NO_STEP = "srun: error: (Unable to create step|Application launch failed)"
"""Pattern of srun's messages that Slurm has not started any program on the nodes."""

_NO_OUTPUT = "0:53"
"""``slurmstepd`` could not open the job's output file (``ESLURMD_...``, shown as signal 53)."""


def translated(job: QueuedJob, *, started: bool) -> tuple[Word, str | None]:
    """Our word for a job's state, and its reason.

    Args:
        job: As Slurm describes it.
        started: True if the run directory shows that it has run before.
    """
    if job.state in _WAITING:
        return "requeued" if started else "queued", _PENDING.get(job.reason, job.reason) or None
    if job.state in _LIVE:
        return "running", None
    if job.state == "CANCELLED":
        return "cancelled", "cancelled by scancel"
    if job.state == "NODE_FAIL":
        return "failed", f"a node failed ({job.nodes or 'unknown'}), and the job was not requeued"
    if job.exit_code == _NO_OUTPUT and not started:
        where = f" ({job.nodes})" if job.nodes else ""
        return "failed", f"the nodes{where} cannot write to the run directory: put it into cluster.shared_folder"
    return "failed", _ENDED.get(job.state, f"Slurm says {job.state}, exit status {job.exit_code or 'unknown'}")
