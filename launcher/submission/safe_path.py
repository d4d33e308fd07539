"""Submitit's own processes on this machine, with the working folder off their ``sys.path``.

Submitit starts a controller, and the controller our task. The controller's command line cannot be chosen, so it gets a
variable; the task's can, so it gets ``-P``, and the variable is taken away again: what the job's own processes get is
said by the job.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator

from launcher.job.torchrun import SAFE_PATH


def python() -> str:
    """The words by which the controller calls Python; a user who has set the variable keeps it."""
    without = "" if os.environ.get(SAFE_PATH) else f"env -u {SAFE_PATH} "
    return f"{without}{shlex.quote(sys.executable)} -P"


@contextlib.contextmanager
def for_controller() -> Iterator[None]:
    """Give the variable to processes that are started meanwhile."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = before or "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before
