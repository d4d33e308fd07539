from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.backends.megatron.translate import environment
from launcher.base import machine
from launcher.base.machine import Gpu, Machine, disk_free, facts, host_memory
from launcher.base.units import MIB
from launcher.config.open_values import SPEED, dtypes, option_of, with_machine
from launcher.config.request import request
from launcher.estimate.memory.device import cublas_workspace
from launcher.spec import RunSpec
from tests.support.helpers import CPU_HOST, ask, make_spec

H200 = Gpu(name="NVIDIA H200", memory_bytes=150_754_820_096, reserved_bytes=600_000_000, compute_capability=9.0)
GPU_NODE = Machine(gpus=(H200,) * 4, host_memory_bytes=2**40, disk_free_bytes=2**41, cpus=64)


def spec_on(where: Machine, *overrides: str) -> RunSpec:
    return request(overrides, facts=where).require()


def test_auto_takes_the_gpus_of_this_machine() -> None:
    spec = spec_on(GPU_NODE)
    assert (spec.hardware.name, spec.hardware.title) == ("auto", "NVIDIA H200 (this machine)")
    assert (spec.hardware.device, spec.hardware.memory_bytes) == ("cuda", 150_754_820_096)
    assert spec.rank_memory_bytes == 150_154_820_096
    assert (spec.hardware.host_memory_bytes, spec.hardware.disk_bytes) == (2**40, 2**41)
    assert spec.hardware.dtypes == ("fp32", "fp16", "bf16", "fp8")
    assert spec.cluster.gpus_per_node == 4


def test_auto_takes_the_hosts_memory_where_there_is_no_gpu() -> None:
    spec = spec_on(CPU_HOST)
    assert (spec.hardware.device, spec.hardware.title) == ("cpu", "this machine's CPU, 24.0 GiB")
    assert (spec.hardware.memory_bytes, spec.hardware.host_memory_bytes) == (None, 24 * 2**30)
    assert spec.hardware.dtypes == ("fp32", "fp16", "bf16", "fp8")
    assert (spec.cluster.gpus_per_node, spec.rank_memory_bytes) == (2, 12 * 2**30)


def test_of_several_kinds_of_gpus_the_smallest_decides() -> None:
    old = Gpu(name="Tesla V100-SXM2-16GB", memory_bytes=2**34, reserved_bytes=None, compute_capability=7.0)
    spec = spec_on(replace(GPU_NODE, gpus=(H200, old)))
    assert spec.hardware.title == "NVIDIA H200 and Tesla V100-SXM2-16GB (this machine)"
    assert (spec.hardware.memory_bytes, spec.hardware.dtypes) == (2**34, ("fp32", "fp16"))


def test_a_memory_that_an_own_option_of_a_cpu_names_is_a_ranks_capacity(tmp_path: Path) -> None:
    (tmp_path / "conf" / "hardware").mkdir(parents=True)
    option = "defaults: [_base, _self_]\nname: box\ntitle: a box\ndevice: cpu\nmemory_bytes: 3000000\nsource: us\n"
    (tmp_path / "conf" / "hardware" / "box.yaml").write_text(option)
    assert make_spec("hardware=box", folder=tmp_path).rank_memory_bytes == 3_000_000
    assert make_spec("hardware=box", "hardware.memory_bytes=5", folder=tmp_path).rank_memory_bytes == 5
    (tmp_path / "conf" / "hardware" / "box.yaml").write_text(f"{option}reserved_bytes: 1000000\n")
    assert make_spec("hardware=box", folder=tmp_path).rank_memory_bytes == 2_000_000


def test_the_memory_of_a_card_is_no_ranks_on_the_cpu() -> None:
    spec = make_spec("hardware=h100_80g", "hardware.device=cpu", "hardware.host_memory_bytes=8000000")
    assert (spec.hardware.memory_bytes, spec.cluster.gpus_per_node) == (None, 2)
    assert spec.rank_memory_bytes == 4_000_000


def test_what_the_user_sets_beside_auto_stays() -> None:
    spec = spec_on(GPU_NODE, "hardware.memory_bytes=1000000", "hardware.dtypes=[fp32]", "hardware.disk_bytes=5")
    assert (spec.hardware.memory_bytes, spec.hardware.dtypes, spec.hardware.disk_bytes) == (1000000, ("fp32",), 5)
    assert spec.rank_memory_bytes == 1000000
    assert spec_on(GPU_NODE, "cluster.gpus_per_node=1").cluster.gpus_per_node == 1


def test_cpu_ranks_on_a_machine_with_gpus_can_be_asked_for() -> None:
    for words in ("hardware.device=cpu", "hardware=cpu"):
        spec = spec_on(GPU_NODE, words)
        assert (spec.hardware.device, spec.hardware.memory_bytes, spec.cluster.gpus_per_node) == ("cpu", None, 2)


def test_a_gpu_that_this_machine_lacks_has_an_unknown_memory() -> None:
    spec = spec_on(CPU_HOST, "hardware.device=cuda")
    assert (spec.hardware.title, spec.hardware.memory_bytes) == ("a GPU (this machine has none)", None)


@pytest.mark.parametrize(
    ("where", "cluster", "ranks"),
    [(CPU_HOST, "local", 2), (CPU_HOST, "slurm", 8), (GPU_NODE, "local", 4), (GPU_NODE, "slurm", 8)],
)
def test_a_named_gpu_has_the_default_ranks_of_its_cluster(where: Machine, cluster: str, ranks: int) -> None:
    spec = spec_on(where, "hardware=h100_80g", f"cluster={cluster}", "cluster.nodes=3")
    assert (spec.hardware.memory_bytes, spec.hardware.host_memory_bytes) == (85_520_809_984, None)
    assert (spec.cluster.gpus_per_node, spec.cluster.nodes) == (ranks, 3)


def test_resolving_leaves_the_given_configuration_as_it_was() -> None:
    hardware: dict[str, Any] = {"name": "auto", "device": None, "dtypes": [], "memory_bytes": None}
    config: dict[str, Any] = {"hardware": hardware, "cluster": {"kind": "local", "gpus_per_node": None}}
    config["precision"] = {"name": "bf16", "compute": "bf16"}
    before = {name: dict(group) for name, group in config.items()}
    for host in (GPU_NODE, CPU_HOST):
        with_machine(config, host)
        assert config == before


def test_cpu_ranks_take_fp32_where_no_precision_is_named_and_it_is_said() -> None:
    left_open = ask("model=tiny", "hardware=cpu")
    assert (left_open.require().precision.name, left_open.require().precision.compute) == ("fp32", "fp32")
    (said,) = left_open.said
    assert "precision is not set and the ranks are on CPUs: fp32" in said
    assert left_open.require().hash == make_spec("model=tiny", "hardware=cpu", "precision=fp32").hash


@pytest.mark.parametrize(
    "words", [("precision=bf16",), ("hardware=h100_80g",), ("precision.accumulate=fp32",), ("hardware.device=cuda",)]
)
def test_a_precision_that_is_named_and_that_of_a_gpu_stay_as_they_are(words: tuple[str, ...]) -> None:
    asked = ask("model=tiny", "cluster.gpus_per_node=2", *words)
    assert asked.require().precision.name == "bf16"
    assert asked.said == ()


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        (5.2, ("fp32",)),
        (7.0, ("fp32", "fp16")),
        (8.6, ("fp32", "fp16", "bf16")),
        (8.9, ("fp32", "fp16", "bf16", "fp8")),
        (10.0, ("fp32", "fp16", "bf16", "fp8", "fp4")),
    ],
)
def test_formats_follow_from_the_compute_capability(capability: float, expected: tuple[str, ...]) -> None:
    assert dtypes(capability) == expected


def test_this_machine_answers() -> None:
    found = facts()
    assert found.host_memory_bytes > 2**28
    assert found.cpus >= 1
    assert found.disk_free_bytes is not None
    assert all(gpu.memory_bytes > 0 and gpu.name for gpu in found.gpus)


def test_asking_a_machine_without_a_driver_imports_no_nvml() -> None:
    code = (
        "import sys\n"
        "from launcher.base import machine\n"
        "machine._driver = lambda: False\n"
        "assert machine.facts().gpus == ()\n"
        "assert 'pynvml' not in sys.modules and 'torch' not in sys.modules\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500, check=False)
    assert run.returncode == 0, run.stderr


class FakeNvml:
    """Stands in for pynvml: a plain GPU and one that is cut into two MIG slices."""

    class NVMLError(Exception):
        """As pynvml's."""

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return f"gpu{index}"

    def nvmlDeviceGetCudaComputeCapability(self, handle: str) -> list[int]:  # noqa: N802
        return [9, 0]

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        if handle == "gpu0":
            raise self.NVMLError("not supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, number: int) -> str:  # noqa: N802
        if number == 1:
            raise self.NVMLError("not found")
        return f"{handle}-slice{number}"

    nvmlMemory_v2 = 2  # noqa: N815

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int = 1) -> SimpleNamespace:  # noqa: N802
        if version == 2 and handle == "gpu1-slice2":
            raise self.NVMLError("not supported")
        return SimpleNamespace(total=10 if "slice" in handle else 80, **({"reserved": 3} if version == 2 else {}))

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return f"Fake {handle}"

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return f"uuid-{handle}"


def test_with_a_fake_nvml_mig_slices_stand_in_the_place_of_their_gpu() -> None:
    nvml: Any = FakeNvml()
    found = [entry for index in range(2) for entry in machine._devices(nvml, index)]
    assert [(uuid, gpu.memory_bytes, gpu.reserved_bytes) for uuid, gpu in found] == [
        ("uuid-gpu0", 80, 3),
        ("uuid-gpu1-slice0", 10, 3),
        ("uuid-gpu1-slice2", 10, None),
    ]
    assert {gpu.compute_capability for _, gpu in found} == {9.0}


@pytest.mark.parametrize(
    ("visible", "positions"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("", []),
        ("-1", []),
        ("0,7,1", [0]),
        ("GPU-b, GPU-a", [1, 0]),
        ("GPU-x", []),
    ],
)
def test_the_gpus_are_those_that_cuda_shows(visible: str | None, positions: list[int]) -> None:
    assert machine._visible(["GPU-a1", "GPU-b2", "GPU-c3"], visible) == positions


def limited(folder: Path, membership: str, limits: dict[str, str]) -> int:
    """The memory under cgroup files with these contents."""
    folder.mkdir()
    (folder / "membership").write_text(membership)
    for name, text in limits.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return host_memory(folder / "cgroup", folder / "membership")


def test_the_limit_of_a_cgroup_counts_where_it_is_below_the_machines_memory(tmp_path: Path) -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    two = {"job/step/memory.max": "max\n", "job/memory.max": "1048576\n"}
    assert limited(tmp_path / "two", "0::/job/step\n", two) == 1048576
    one = {"memory/slurm/memory.limit_in_bytes": "2097152\n", "memory/memory.limit_in_bytes": "9223372036854771712\n"}
    assert limited(tmp_path / "one", "4:memory:/slurm\n1:cpu:/\n", one) == 2097152
    assert limited(tmp_path / "free", "0::/\n", {"memory.max": "max\n"}) == total
    assert host_memory(tmp_path / "none", tmp_path / "none") == total


def test_the_gpus_of_this_machine_bring_their_own_compute_capability() -> None:
    assert spec_on(GPU_NODE).hardware.compute_capability == 9.0
    l40s = replace(H200, name="NVIDIA L40S", compute_capability=8.9)
    assert spec_on(replace(GPU_NODE, gpus=(H200, l40s))).hardware.compute_capability == 8.9
    assert spec_on(GPU_NODE, "hardware.compute_capability=10.3").hardware.compute_capability == 10.3
    assert spec_on(CPU_HOST, "hardware.device=cuda").hardware.compute_capability is None


@pytest.mark.parametrize(
    ("name", "capability", "workspace", "connections"),
    [("NVIDIA B200", 10.0, 32 * MIB, None), ("NVIDIA L40S", 8.9, 8_519_680, "1"), ("NVIDIA H200", 9.0, 32 * MIB, "1")],
)
def test_auto_takes_the_workspace_and_the_queue_of_the_gpu_that_is_there(
    name: str, capability: float, workspace: int, connections: str | None
) -> None:
    gpu = Gpu(name=name, memory_bytes=2**37, reserved_bytes=None, compute_capability=capability)
    spec = spec_on(replace(GPU_NODE, gpus=(gpu,) * 4), "parallel=tp")
    assert cublas_workspace(spec) == workspace
    assert environment(spec).get("CUDA_DEVICE_MAX_CONNECTIONS") == connections


def test_a_gpu_of_unknown_capability_counts_with_the_larger_workspace() -> None:
    assert cublas_workspace(spec_on(GPU_NODE, "hardware=a100_80g", "hardware.compute_capability=null")) == 32 * MIB


@pytest.mark.parametrize(
    ("dtypes", "expected"), [(("fp16", "bf16", "fp8"), 9.0), (("fp16", "bf16"), 8.0), (("fp16",), 7.0)]
)
def test_an_unknown_compute_capability_is_the_first_that_has_the_formats(
    dtypes: tuple[str, ...], expected: float
) -> None:
    words = ("hardware=b200", f"hardware.dtypes=[{','.join(dtypes)}]")
    assert make_spec(*words).hardware.effective_capability == 10.0
    assert make_spec(*words, "hardware.compute_capability=null").hardware.effective_capability == expected


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100_80g"),
        ("A100-SXM4-40GB", "a100_40g"),
        ("NVIDIA Tesla V100-SXM2-16GB", "v100_16g"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("NVIDIA H100", None),
        ("", None),
    ],
)
def test_a_gpu_is_known_by_the_name_that_its_driver_gives_it(name: str, option: str | None) -> None:
    assert option_of(name) == option


def test_a_gpu_of_this_machine_has_the_speed_of_the_card_of_its_name() -> None:
    here, card = spec_on(GPU_NODE).hardware, make_spec("hardware=h200").hardware
    speed = [getattr(here, key) for key in SPEED]
    assert speed == [getattr(card, key) for key in SPEED]
    assert here.flops_bf16 == 989.4e12
    assert spec_on(GPU_NODE, "hardware.memory_bandwidth=4e12").hardware.memory_bandwidth == 4e12
    assert len(SPEED) == 11


def test_the_speed_of_gpus_without_a_card_or_of_several_kinds_is_unknown() -> None:
    other = replace(H200, name="NVIDIA H100 NVL")
    mixed = (H200, replace(H200, name="NVIDIA H100 80GB HBM3"))
    for gpus in ((other,) * 4, mixed):
        hardware = spec_on(replace(GPU_NODE, gpus=gpus)).hardware
        assert {getattr(hardware, key) for key in SPEED} == {None}
    assert {getattr(spec_on(CPU_HOST).hardware, key) for key in SPEED} == {None}


def test_the_disk_is_that_of_the_runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if not Path("/dev/shm").is_dir() or Path("/dev/shm").stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one disk")
    here, there = (spec_on(GPU_NODE, f"run.directory={folder}/runs/a") for folder in (tmp_path, "/dev/shm"))
    assert here.hardware.disk_bytes == GPU_NODE.disk_free_bytes
    assert there.hardware.disk_bytes == disk_free(Path("/dev/shm"))
