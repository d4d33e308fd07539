"""Shared set-up: no test reads or writes the user's cache, and none waits for the network.

Properties are tried on the same examples every time, so that a change is judged by itself; ``LAUNCH_EXPLORE=1 pytest``
looks for new ones.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from slurm import dev_cluster

_CACHE = tempfile.mkdtemp(prefix="launch-cache-")
os.environ["XDG_CACHE_HOME"] = _CACHE
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("fixed", derandomize=True)
settings.load_profile("default" if os.environ.get("LAUNCH_EXPLORE") else "fixed")


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[dev_cluster.Cluster]:
    """A real Slurm with accounting, shared by all of pytest's workers; the last one that leaves stops it.

    It ends by itself an hour after it began, should nobody be left to do so.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))[:8]
    folder = Path(tempfile.gettempdir()) / f"launch-slurm-{run}"
    users = folder.with_name(f"{folder.name}.users")
    with users.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        cluster = dev_cluster.start(folder, accounting=True)
        yield cluster
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        cluster.stop()
        users.unlink(missing_ok=True)
