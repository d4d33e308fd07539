"""A node's part in a Slurm job, as the task that Slurm starts on the node knows it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
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
        without: Why the job cannot do without nodes, asked before it is put back; None where it can.
        exclude: Keeps the job, once it waits again, off nodes.
        hosts: Slurm's names of the job's nodes, by their numbers.
        seconds_left: How long the job may still run, if Slurm says so.
    """

    job_id: str
    number: int
    attempt: str
    told_to_save: threading.Event
    told_to_end: threading.Event
    requeue: Callable[[], None] = field(repr=False)
    seconds_left: Callable[[], float | None] = field(repr=False)
    without: Callable[[Sequence[str]], str | None] = field(repr=False, default=lambda _: None)
    exclude: Callable[[Sequence[str]], None] = field(repr=False, default=lambda _: None)
    hosts: Sequence[str] = ()
