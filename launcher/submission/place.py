"""A node's part in a Slurm job, as the task that Slurm starts on the node knows it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field


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
