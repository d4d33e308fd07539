"""The callable that submitit pickles and starts on each node of a job."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from launcher.job import torchrun
from launcher.slurm import client, jobs
from launcher.submission import node
from launcher.submission.processes import SlurmPlace

_REQUEUE_PATIENCE_S = 90
"""Seconds that a job that has saved waits for a controller that is away; beyond Slurm's margin it is ended anyway."""


class NodeTask:
    """The pickled callable: importable, with no state; all the job needs is in the run directory."""

    def __call__(self, directory: str) -> None:
        """Run this node's part of the job.

        The signal that comes ahead of the end only sets a flag. Submitit's own handler would call any signal a time-out
        in jobs of ten minutes or less, and decide within the handler what the ranks have yet to finish.
        """
        import submitit

        environment = submitit.JobEnvironment()
        if environment.cluster == "local":
            node.run(Path(directory))
            return
        told = {signal.SIGUSR2: threading.Event(), signal.SIGTERM: threading.Event()}

        def note(number: int, frame: FrameType | None) -> None:
            told[signal.Signals(number)].set()

        for each in told:
            signal.signal(each, note)
        job_id = environment.raw_job_id
        restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        attempt = f"{job_id}_{restarts}"
        facts = {
            torchrun.HOST: environment.hostnames[0],
            torchrun.PORT: str(_port(job_id, restarts)),
            torchrun.IS_HOST: "1" if environment.node == 0 else "0",
            torchrun.RENDEZVOUS: attempt,
        }
        place = SlurmPlace(
            job_id=environment.job_id,
            number=environment.node,
            attempt=attempt,
            told_to_save=told[signal.SIGUSR2],
            told_to_end=told[signal.SIGTERM],
            requeue=lambda: client.ask("scontrol", "requeue", environment.job_id, patience_s=_REQUEUE_PATIENCE_S),
            seconds_left=lambda: jobs.seconds_left(environment.job_id),
            without=lambda bad: jobs.obstacle(environment.job_id, bad),
            exclude=lambda bad: jobs.exclude(environment.job_id, bad, patience_s=_REQUEUE_PATIENCE_S),
            hosts=tuple(environment.hostnames),
        )
        node.run(Path(directory), facts=facts, place=place)

    def checkpoint(self, directory: str) -> Any:
        """Go back into the queue as it is: submitit asks only where the signal comes before :meth:`__call__` does."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, directory)


def _port(job_id: str, restarts: int) -> int:
    """A port for the rendezvous below the ephemeral range (32768), the same on all nodes, another for each attempt."""
    return 20000 + (int("".join(filter(str.isdigit, job_id)) or 0) + 4999 * restarts) % 10000
