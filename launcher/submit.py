"""``launcher.submit``: the function of the API, and the module under which jobs of older queues look for their task.

Jobs queued before ``launcher.submission`` was a room have pickled their task as ``launcher.submit.NodeTask``. Importing
this module puts it in the place of the function in the package, so it can be called in the function's stead.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        """Submit a run as :func:`launcher.api.submit` does."""
        from launcher.api import submit

        return submit(*args, **options)


def __getattr__(name: str) -> object:
    """Import the task when a job asks for it."""
    if name == "NodeTask":
        from launcher.submission.node_task import NodeTask

        return NodeTask
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


sys.modules[__name__].__class__ = _Callable
