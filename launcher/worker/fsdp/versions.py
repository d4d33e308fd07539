"""Differences between versions of torch, asked of torch itself, so that no other module asks for its version.

Versions that lack a whole feature are refused before the job starts (``launcher.backends.versions``).
"""

from __future__ import annotations

import inspect
from typing import Any

from torch.nn.parallel import DistributedDataParallel

_NEW = "forward_sync_buffers"

WITHOUT_BUFFER_SYNC: dict[str, Any] = {
    _NEW if _NEW in inspect.signature(DistributedDataParallel).parameters else "broadcast_buffers": False
}
"""DDP's argument that leaves buffers as they are in the forward pass; the older name is deprecated since torch 2.13."""
