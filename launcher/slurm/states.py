"""Translates Slurm's job states into ours, with the reason in one line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from launcher.base import files
from launcher.job.events import EndCause
from launcher.slurm.jobs import QueuedJob

type Word = Literal["queued", "running", "requeued", "finished", "failed", "cancelled"]

_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
"""States in which a job has no nodes and is waiting to start (squeue(1), "JOB STATE CODES")."""

_LIVE = frozenset({"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT",
                   "RESIZING"})  # fmt: skip
"""States in which a job has nodes; every other state is an end."""

_PENDING: Mapping[str, str] = files.own_json(Path(__file__).with_name("pending.json"))
"""Reasons of ``squeue`` for a pending job (squeue(1), "JOB REASON CODES"), in words that say what to do; Slurm adds
details after a comma, as in ``ReqNodeNotAvail, UnavailableNodes:n7``."""

_LIMIT_OF = {"QOS": "a limit of its quality of service", "Assoc": "a limit of its account or user"}
_LIMITED = {
    "Submit": "on submitted jobs",
    "Jobs": "on concurrent jobs",
    "Minutes": "on minutes used",
    "Wall": "on the time limit of a job (cluster.time_limit_min)",
    "CPU": "on CPUs",
    "Mem": "on memory",
    "Node": "on nodes",
    "GRES": "on GPUs",
    "Billing": "on billing units",
}
"""Parts of the names of limits, the more specific first; their case varies, as in ``QOSMaxCpuPerUserLimit`` and
``AssocGrpCPUMinutesLimit``."""

_ENDED: dict[str, tuple[str, EndCause]] = {
    "TIMEOUT": (
        "its time limit ended it before it saved; raise cluster.save_margin_s or cluster.time_limit_min",
        "time_limit",
    ),
    "OUT_OF_MEMORY": ("the kernel killed it: out of host memory", "out_of_memory"),
    "PREEMPTED": ("preempted, and not requeued because of its partition or cluster.requeues", "preempted"),
    "DEADLINE": ("its deadline passed", "error"),
    "BOOT_FAIL": ("a node did not boot", "rank_killed"),
    "COMPLETED": ("the job ended without recording how", "error"),
}
NO_STEP = "srun: error: (Unable to create step|Application launch failed)"
"""Pattern of srun's messages when Slurm has not started any program on the nodes."""

_NO_OUTPUT = "0:53"  # ``slurmstepd`` could not open the job's output file (``ESLURMD_...``, shown as signal 53).


def translate(job: QueuedJob, *, started: bool) -> tuple[Word, str | None, EndCause | None]:
    """Our state of a job, its reason, and the cause of its end; ``started`` is true if the run has run before."""
    if job.state in _WAITING:
        reasons = (_waits_for(job.reason), job.start and f"Slurm expects it to start at {job.start}")
        reason = "; ".join(text for text in reasons if text) or None
        return "requeued" if started else "queued", reason, None
    if job.state in _LIVE:
        return "running", None, None
    if job.state == "CANCELLED":
        return "cancelled", "cancelled by scancel", None
    if job.state == "NODE_FAIL":
        return "failed", f"a node failed ({job.nodes or 'unknown'}), and the job was not requeued", "rank_killed"
    if job.exit_code == _NO_OUTPUT and not started:
        where = f" ({job.nodes})" if job.nodes else ""
        reason = f"the nodes{where} cannot write to the run directory: use cluster.shared_folder"
        return "failed", reason, "error"
    if job.state in _ENDED:
        return "failed", *_ENDED[job.state]
    return "failed", f"Slurm says {job.state}, exit status {job.exit_code or 'unknown'}", None


def _waits_for(reason: str) -> str | None:
    """Slurm's reason for a pending job in our words, followed by Slurm's own if ours say less."""
    head, _, detail = reason.partition(",")
    if head in _PENDING:
        return f"{_PENDING[head]} ({detail.strip()})" if detail.strip().startswith("Unavail") else _PENDING[head]
    limit = next((words for start, words in _LIMIT_OF.items() if reason.startswith(start)), None)
    if limit is None:
        return reason or None
    on_what = next((f" {words}" for part, words in _LIMITED.items() if part.lower() in reason.lower()), "")
    never = "; no single job may have that much, so it will never start" if "PerJob" in reason else ""
    return f"waiting because of {limit}{on_what}{never} ({reason})"
