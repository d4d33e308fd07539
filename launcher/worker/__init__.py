"""The job from inside: errors that the user can act on, each one message, and the signals that ask it to end."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

from launcher.base.errors import LauncherError
from launcher.job.events import FailureKind

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
"""Torchrun and schedulers send SIGTERM; submitit and Slurm's ``--signal`` send SIGUSR2 ahead of time."""


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Put a value in an attribute's place for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class TrainingError(LauncherError):
    """The run cannot go on; the message says why and what to change."""

    exit_status = 5

    def __init__(self, message: str, kind: FailureKind = "error") -> None:
        """Hold the message, and what ``launch why`` is to take the end for."""
        self.kind = kind
        super().__init__(message)


class CheckpointError(TrainingError):
    """A checkpoint cannot be written, found or read."""


class NodeFault(TrainingError):
    """A node does not do its part: the job may go on without it."""

    def __init__(self, message: str, node: str | None) -> None:
        self.node = node
        super().__init__(message)
