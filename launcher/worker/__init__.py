"""The job from inside: errors with a reason that the user can act on, and the signals that ask it to end.

Errors become one message, without a stack of frames.
"""

from __future__ import annotations

import signal

from launcher.base.errors import LauncherError
from launcher.job.events import FailureKind

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
"""Torchrun and schedulers send SIGTERM; submitit and Slurm's ``--signal`` send SIGUSR2 ahead of time."""


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
        """Hold the message, and the node where it is known."""
        self.node = node
        super().__init__(message)
