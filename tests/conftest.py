"""Shared set-up: no test reads or writes the user's cache or state, none waits for the network, and what a test starts
hears signals, also where the whole suite was started to ignore them.

Properties are tried on the same examples every time, so that a change is judged by itself; ``LAUNCH_EXPLORE=1 pytest``
looks for new ones.
"""

from __future__ import annotations

import atexit
import functools
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import submitit  # noqa: F401  # Its import closes the handlers of logging, and absl's close what pytest captures with.
from hypothesis import HealthCheck, settings

from benchmarks import signals
from slurm import dev_cluster
from tests.support import slurm_runs, torchrun

signals.hear_in_children()

_CACHES = "LAUNCH_TEST_CACHE"
"""The variable by which pytest's workers, processes of their own, know the folder of the cache that they share."""
if _CACHES not in os.environ:
    os.environ[_CACHES] = tempfile.mkdtemp(prefix="launch-cache-")
    atexit.register(shutil.rmtree, os.environ[_CACHES], ignore_errors=True)
os.environ["XDG_CACHE_HOME"] = os.environ[_CACHES]
os.environ["XDG_STATE_HOME"] = f"{os.environ[_CACHES]}/state{os.environ.get('PYTEST_XDIST_WORKER', '')}"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test fails because a machine is slow: neither one example nor making them has a limit of time.
settings.register_profile("fixed", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default" if os.environ.get("LAUNCH_EXPLORE") else "fixed")


_CLUSTERS = "LAUNCH_TEST_CLUSTERS"
"""The variable by which pytest's workers, processes of their own, know the folder of the clusters."""

_LONGEST = (
    "worker/deepspeed/test_same_maths",
    "worker/megatron/test_same_maths",
    "worker/trace",
    "worker/fsdp/test_pipeline",
    "importers/test_peers_trained",
    "test_tour",
    "commands/test_resume",
    "commands/test_run",
    "commands/test_run_megatron",
    "worker",
    "commands/test_recipe_lock",
    "preflight/test_traced",
    "benchmarks/test_gpu",
    "sweeping",
    "backends",
    "slurm/test_runs",
    "slurm/test_training",
    "slurm/test_preemption",
    "slurm/test_faults",
    "slurm/test_lost_nodes",
    "slurm/test_outages",
)
"""Folders and files whose tests come first: a long file that comes last would run alone."""


_THOROUGH = (
    "backends/deepspeed/test_options",
    "backends/megatron/test_differential",
    "backends/megatron/test_lean_validator",
    "benchmarks",
    "browser",
    "commands/test_run_megatron",
    "data/test_rendering",
    "families/test_decoders",
    "preflight/test_traced",
    "slurm",
    "test_techniques",
    "test_tour",
    "worker/deepspeed/test_same_maths",
    "worker/fsdp/test_chat",
    "worker/fsdp/test_context_parallel",
    "worker/fsdp/test_pipeline",
    "worker/fsdp/test_lora",
    "worker/fsdp/test_optimizers",
    "worker/fsdp/test_qlora",
    "worker/megatron/test_same_maths",
    "worker/rehearse",
    "worker/test_checkpoints",
    "worker/trace/test_formulas_against_traces",
)
"""Equal maths, real Slurm, a real browser, and tools that no user has: `make test-all` has them, `make test` not.

Of whole matrices it has a covering part (``tests.support.cover``), and `make test-matrix` the rest.
"""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave unread what the selection leaves out as a whole: to import all of it takes 10 s of each worker."""
    if not collection_path.name.startswith("test_"):
        return None
    wanted, whole = config.getoption("markexpr"), _is_thorough(collection_path)
    if wanted == "not thorough":
        return whole or None
    if wanted == "matrix" or (wanted == "thorough and not matrix" and not whole):
        text, sign = collection_path.read_text(), "mark.matrix" if wanted == "matrix" else "mark.thorough"
        return None if sign in text or ".marked(" in text else True
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is thorough, and start with what takes longest."""
    for item in items:
        if _is_thorough(item.path) or item.get_closest_marker("matrix"):
            item.add_marker(pytest.mark.thorough)
    items.sort(key=lambda item: _turn(item.path))


def pytest_collection_finish() -> None:
    """Let no collection of garbage look through the modules and tests again, which stay until the end."""
    gc.freeze()


@functools.cache
def _names(path: Path) -> frozenset[str]:
    """A test's file without its suffix, and the folders above it, below this one."""
    place = path.relative_to(Path(__file__).parent).with_suffix("")
    return frozenset((place.as_posix(), *(parent.as_posix() for parent in place.parents)))


def _is_thorough(path: Path) -> bool:
    return not _names(path).isdisjoint(_THOROUGH)


@functools.cache
def _turn(path: Path) -> int:
    return next((turn for turn, name in enumerate(_LONGEST) if name in _names(path)), len(_LONGEST))


def pytest_configure() -> None:
    """Let the first process of a run own the folder of the clusters."""
    if _CLUSTERS not in os.environ:
        os.environ[_CLUSTERS] = tempfile.mkdtemp(prefix="launch-slurm-")  # Short: the paths of sockets are limited.
        atexit.register(_stop_clusters, Path(os.environ[_CLUSTERS]))


def _stop_clusters(folder: Path) -> None:
    for each in folder.iterdir():
        if each.is_dir():
            dev_cluster.Cluster(layout=dev_cluster.Layout(folder=each)).stop()
    shutil.rmtree(folder)


@pytest.fixture
def without_torch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runs that a test starts here have a torchrun that is there at once; no test whose subject it is."""
    monkeypatch.setenv("PYTHONPATH", str(torchrun.without_torch(tmp_path_factory.mktemp("torchrun"))))


@pytest.fixture(scope="module")
def slurm_cluster(request: pytest.FixtureRequest) -> dev_cluster.Cluster:
    """A real Slurm with accounting, which pytest's workers share.

    What a test does to a node must not end another's job, so a file that disturbs nodes names a cluster of its own in
    ``CLUSTER``. All end with the run, and by themselves an hour after they began, should nobody be left to stop them.
    """
    name = getattr(request.module, "CLUSTER", "shared")
    return dev_cluster.start(Path(os.environ[_CLUSTERS]) / name, accounting=True)


@pytest.fixture
def cluster(
    slurm_cluster: dev_cluster.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dev_cluster.Cluster]:
    """The cluster, at work in a folder of its own with a script that needs no torch."""
    (tmp_path / "train.py").write_text(slurm_runs.SCRIPT)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    with slurm_runs.at(tmp_path, slurm_cluster):
        yield slurm_cluster


@pytest.fixture
def torchrun_without_torch(cluster: dev_cluster.Cluster, tmp_path: Path) -> None:
    """Let the jobs that a test submits to the cluster start their ranks by a stand-in, which is there at once."""
    os.environ["PYTHONPATH"] = f"{torchrun.without_torch(tmp_path / 'agent')}:{os.environ['PYTHONPATH']}"
