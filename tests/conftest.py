"""Shared set-up: tests never touch the user's cache or state or wait for the network, and their processes receive
signals even if the suite was started to ignore them.

Hypothesis tries the same examples every time, so that a failure is due to the change; ``LAUNCH_EXPLORE=1 pytest`` looks
for new ones.
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
"""Environment variable with the cache folder that pytest's worker processes share."""
if _CACHES not in os.environ:
    os.environ[_CACHES] = tempfile.mkdtemp(prefix="launch-cache-")
    atexit.register(shutil.rmtree, os.environ[_CACHES], ignore_errors=True)
os.environ["XDG_CACHE_HOME"] = os.environ[_CACHES]
os.environ["XDG_STATE_HOME"] = f"{os.environ[_CACHES]}/state{os.environ.get('PYTEST_XDIST_WORKER', '')}"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test fails because a machine is slow: examples and their generation have no time limit.
settings.register_profile("fixed", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default" if os.environ.get("LAUNCH_EXPLORE") else "fixed")


_CLUSTERS = "LAUNCH_TEST_CLUSTERS"
"""Environment variable with the folder of the clusters that pytest's worker processes share."""

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
"""Folders and files whose tests run first: a long file at the end would run alone."""


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
"""Equal maths, real Slurm, a real browser, and developers' tools: `make test-all` runs them, `make test` does not.

`make test-all` runs a covering part of each matrix (``tests.support.cover``), `make test-matrix` the rest.
"""

_FULL = (
    "backends/megatron/test_differential",
    "backends/megatron/test_lean_validator::test_the_answers_are_those_of_a_process_that_imports_everything",
    "benchmarks/test_gpu::test_a_row_of_megatron_is_measured",
    "benchmarks/test_gpu::test_a_run_is_measured",
    "benchmarks/test_gpu::test_rank_0_of_a_world_without_peers",
    "browser/test_narrow",
    "browser/test_several",
    "browser/test_sweep::test_a_thousand_points",
    "browser/test_table",
    "commands/test_resume::test_on_fewer_more_and_one_rank_a_run_trains_what_it_would_have_on_one[megatron",
    "commands/test_resume::test_on_fewer_more_and_one_rank_a_run_trains_what_it_would_have_on_one[zero",
    "commands/test_run_megatron",
    "config/test_hugging_face::test_the_table_of_defaults",
    "families/test_decoders::test_an_untied_model_whose_blocks_would_be_shared",
    "preflight/test_traced::test_the_recorded_numbers_of_a_7b_model",
    "preflight/test_traced::test_two_depths",
    "slurm/test_measuring",
    "submission/test_evaluating::test_a_stop_while_tasks_are_tried",
    "submission/test_evaluating::test_a_task_that_fails",
    "submission/test_evaluating::test_an_adapter_that_trl_has_trained",
    "submission/test_evaluating::test_the_export_of_a_finished_run",
    "worker/deepspeed/test_qlora",
    "worker/fsdp/test_context_parallel::test_four_ranks_on_two_axes",
    *(
        f"worker/fsdp/test_mxfp8::test_the_memory_is_the_predicted_one[{name}"
        for name in ("long", "recomputed", "selective")
    ),
    "worker/fsdp/test_lora_of_experts",
    "worker/fsdp/test_optimizers::test_a_run_goes_on_from_its_checkpoint",
    "worker/fsdp/test_optimizers::test_one_rank_goes_on_from_two",
    *(
        f"worker/fsdp/test_rounding_in_four_bits::test_the_memory_is_the_predicted_one[{name}"
        for name in ("recomputed", "lora")
    ),
    "worker/fsdp/test_qlora",
    "worker/fsdp/test_rounding::test_two_ranks_round_as_one_process_does",
    "worker/fsdp/test_same_maths::test_four_ranks_on_two_axes",
    "worker/fsdp/test_shared_blocks",
    "worker/megatron/test_parts::test_without_a_compiler",
    "worker/rehearse/test_megatron::test_a_rank_alone_has_the_peaks_of_the_same_rank_in_the_real_run[tensor_pipeline",
    *(
        f"worker/rehearse/test_rehearsed_ranks::test_a_rehearsed_rank_of_four_has_the_peaks_of_the_same_rank_in_the_real_run[{name}"
        for name in ("ddp", "tensor", "zero1", "stages")
    ),
    "worker/test_checkpoints::test_saving_goes_on_once_the_disk_has_room",
    "worker/test_eval_sets::test_trl_evaluates_on_each_set_too[dpo",
    "worker/test_observed_layers::test_layers_that_ask",
    "worker/trl/test_adapters::test_the_memory_is_the_predicted_one_in_every_phase",
)
"""Thorough tests that continuous integration leaves out, to come near 20 minutes on two cores: what they guard changes
with one engine, one precision or one library, and others run part of it. Each is a file and the start of a test's name.
"""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files that the selection excludes entirely: importing all of them costs each worker 10 s."""
    if not collection_path.name.startswith("test_"):
        return None
    wanted, whole = config.getoption("markexpr"), _is_thorough(collection_path)
    if wanted == "not thorough":
        return whole or None
    if wanted == "matrix" or (wanted.startswith("thorough and not") and not whole):
        text, sign = collection_path.read_text(), "mark.matrix" if wanted == "matrix" else "mark.thorough"
        return None if sign in text or ".marked(" in text else True
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the thorough tests, and run the longest files first."""
    for item in items:
        if item.nodeid.removeprefix("tests/").replace(".py", "", 1).startswith(_FULL):
            item.add_marker(pytest.mark.full)
        if _is_thorough(item.path) or item.get_closest_marker("matrix") or item.get_closest_marker("full"):
            item.add_marker(pytest.mark.thorough)
    items.sort(key=lambda item: _turn(item.path))


def pytest_collection_finish() -> None:
    """Exclude modules and tests, which live until the end, from garbage collection."""
    gc.freeze()


@functools.cache
def _names(path: Path) -> frozenset[str]:
    """Names of a test file, without its suffix, and of the folders between it and this one."""
    place = path.relative_to(Path(__file__).parent).with_suffix("")
    return frozenset((place.as_posix(), *(parent.as_posix() for parent in place.parents)))


def _is_thorough(path: Path) -> bool:
    return not _names(path).isdisjoint(_THOROUGH)


@functools.cache
def _turn(path: Path) -> int:
    return next((turn for turn, name in enumerate(_LONGEST) if name in _names(path)), len(_LONGEST))


def pytest_configure() -> None:
    """Create the folder of the clusters in the first process of a run."""
    if _CLUSTERS not in os.environ:
        os.environ[_CLUSTERS] = tempfile.mkdtemp(prefix="launch-slurm-")  # Short, because socket paths are limited.
        atexit.register(_stop_clusters, Path(os.environ[_CLUSTERS]))


def _stop_clusters(folder: Path) -> None:
    for each in folder.iterdir():
        if each.is_dir():
            dev_cluster.Cluster(layout=dev_cluster.Layout(folder=each)).stop()
    shutil.rmtree(folder)


@pytest.fixture
def without_torch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test's runs a torchrun stand-in that starts immediately; not for tests of torchrun itself."""
    monkeypatch.setenv("PYTHONPATH", str(torchrun.without_torch(tmp_path_factory.mktemp("torchrun"))))


@pytest.fixture(scope="module")
def slurm_cluster(request: pytest.FixtureRequest) -> dev_cluster.Cluster:
    """A real Slurm with accounting, which pytest's workers share.

    Disturbing a node must not end another test's job, so a file that does so names its own cluster in ``CLUSTER``. All
    clusters end with the run, and by themselves an hour after they began.
    """
    name = getattr(request.module, "CLUSTER", "shared")
    return dev_cluster.start(Path(os.environ[_CLUSTERS]) / name, accounting=True)


@pytest.fixture
def cluster(
    slurm_cluster: dev_cluster.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dev_cluster.Cluster]:
    """The cluster, with the test in its own working folder that has a script without torch."""
    (tmp_path / "train.py").write_text(slurm_runs.SCRIPT)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    with slurm_runs.at(tmp_path, slurm_cluster):
        yield slurm_cluster


@pytest.fixture
def torchrun_without_torch(cluster: dev_cluster.Cluster, tmp_path: Path) -> None:
    """Give the jobs that a test submits a torchrun stand-in that starts immediately."""
    os.environ["PYTHONPATH"] = f"{torchrun.without_torch(tmp_path / 'agent')}:{os.environ['PYTHONPATH']}"
