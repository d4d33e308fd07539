"""A run as a job of the FSDP2 and DDP worker: torchrun and one module, which reads ``spec.json``."""

from __future__ import annotations

from launcher.backends import _worker
from launcher.job.job import Job
from launcher.spec import RunSpec


def translate(spec: RunSpec, python: str) -> Job:
    """The job.

    Args:
        spec: A run that ``check`` accepts.
        python: The interpreter of the job.
    """
    return _worker.job(spec, python, "launcher.worker.fsdp", environment={})
