"""Shared set-up: no test reads or writes the user's cache, and none waits for the network.

Properties are tried on the same examples every time, so that a change is judged by itself; ``LAUNCH_EXPLORE=1 pytest``
looks for new ones.
"""

from __future__ import annotations

import os
import tempfile

from hypothesis import settings

_CACHE = tempfile.mkdtemp(prefix="launch-cache-")
os.environ["XDG_CACHE_HOME"] = _CACHE
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("fixed", derandomize=True)
settings.load_profile("default" if os.environ.get("LAUNCH_EXPLORE") else "fixed")
