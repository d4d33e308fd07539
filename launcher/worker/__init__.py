"""What runs inside the job: errors the user can act on, one message each, and the signals that ask the job to stop."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

from launcher.base.errors import LauncherError
from launcher.job.events import FailureKind

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
"""Torchrun and schedulers send SIGTERM; submitit and Slurm's ``--signal`` send SIGUSR2 before the time limit."""


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute's value inside the context."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class TrainingError(LauncherError):
    """Raised when the run cannot continue; the message says why and what to change."""

    exit_status = 5

    def __init__(self, message: str, kind: FailureKind = "error") -> None:
        """Store the message and the kind of failure that ``launch why`` reports."""
        self.kind = kind
        super().__init__(message)


class CheckpointError(TrainingError):
    """Raised when a checkpoint cannot be written, found or read."""


class NodeFault(TrainingError):
    """Raised when a node is faulty: the job may continue without it."""

    def __init__(self, message: str, node: str | None) -> None:
        self.node = node
        super().__init__(message)
