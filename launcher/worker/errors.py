"""Errors inside the job with a reason that the user can act on: one message, no stack of frames."""

from __future__ import annotations

from launcher.errors import LauncherError


class TrainingError(LauncherError):
    """The run cannot go on; the message says why and what to change."""

    exit_status = 5


class CheckpointError(TrainingError):
    """A checkpoint cannot be written, found or read."""
