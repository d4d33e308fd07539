"""Alias under which jobs queued before ``launcher.submission`` was a room find the task that submitit has pickled."""

from __future__ import annotations


def __getattr__(name: str) -> object:
    """Import the task when a job asks for it."""
    if name == "NodeTask":
        from launcher.submission.node_task import NodeTask

        return NodeTask
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
