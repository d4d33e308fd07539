"""Shared set-up: no test reads or writes the user's cache, and none waits for the network."""

from __future__ import annotations

import os
import tempfile

_CACHE = tempfile.mkdtemp(prefix="launch-cache-")
os.environ["XDG_CACHE_HOME"] = _CACHE
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
