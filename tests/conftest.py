"""Shared set-up: no test reads or writes the user's cache or state, and none waits for the network.

Properties are tried on the same examples every time, so that a change is judged by itself; ``LAUNCH_EXPLORE=1 pytest``
looks for new ones.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from slurm import dev_cluster
from tests.support import slurm_runs

_CACHE = tempfile.mkdtemp(prefix="launch-cache-")
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
os.environ["XDG_CACHE_HOME"] = _CACHE
os.environ["XDG_STATE_HOME"] = f"{_CACHE}/state"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("fixed", derandomize=True)
settings.load_profile("default" if os.environ.get("LAUNCH_EXPLORE") else "fixed")


@pytest.fixture(scope="module")
def slurm_cluster() -> Iterator[dev_cluster.Cluster]:
    """A real Slurm with accounting, of one file's own: what one test does to a node must not end another file's job.

    It ends by itself an hour after it began, should nobody be left to stop it.
    """
    folder = Path(tempfile.mkdtemp(prefix="launch-slurm-"))  # Short: the paths of its sockets are limited.
    cluster = dev_cluster.start(folder / "c", accounting=True)
    yield cluster
    cluster.stop()
    shutil.rmtree(folder)


@pytest.fixture
def cluster(
    slurm_cluster: dev_cluster.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dev_cluster.Cluster]:
    """The cluster, at work in a folder of its own with a script that needs no torch."""
    (tmp_path / "train.py").write_text(slurm_runs.SCRIPT)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    with slurm_runs.at(tmp_path, slurm_cluster):
        yield slurm_cluster
