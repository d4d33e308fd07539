"""Host memory and disks that are full: who said so, the piles of a node, what would fit there."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.job.memory import HostMemory, Kind, OutOfMemory
from launcher.preflight import assess
from launcher.rundir import contents
from launcher.why.explain import explain
from tests.support.ended_runs import GIB, GPUS, failed, without_memory, write_oom

OFFLOADED = (
    *GPUS,
    "parallel=zero3",
    "zero.offload_optimizer=cpu",
    "hardware.host_memory_bytes=200e9",
    "data.workers=8",
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ended(run: Path, kind: Kind, *, rank_bytes: int, used: int) -> Path:
    """A run on whose node 200 GB of host memory were not enough."""
    failed(run, *OFFLOADED, reason="rank 2 was ended by the kernel: out of host memory")
    host = HostMemory(rank_bytes=rank_bytes, node_used_bytes=used, node_bytes=200 * 10**9)
    found = OutOfMemory(kind=kind, place="host", time=2e9, rank=2, node="gpu07", step=3, host=host)
    write_oom(run, found)
    return run


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("host_killer", "the kernel killed rank 2 on gpu07 in step 3 for lack of host memory"),
        ("cgroup", "the memory limit of the job's cgroup, 186.26 GiB, ended rank 2 on gpu07 in step 3; the rank's"),
        ("slurm", "Slurm ended rank 2 on gpu07 in step 3 with OUT_OF_MEMORY"),
    ],
)
def test_whoever_ended_it_is_named(folder: Path, kind: Kind, words: str) -> None:
    found = explain(ended(folder / "runs" / "a", kind, rank_bytes=20 * GIB, used=199 * 10**9), folder)
    assert found.cause == "out_of_memory"
    assert found.said[0].startswith(words)
    assert found.said[1].startswith("predicted: ")


def test_ranks_that_grew_and_other_processes_are_told_apart(folder: Path) -> None:
    spec = contents.spec_of(ended(folder / "runs" / "a", "host_killer", rank_bytes=40 * GIB, used=200 * 10**9))
    grown = explain(folder / "runs" / "a", folder)
    assert grown.pile == "ranks"
    assert "the ranks' processes had" in grown.said[2]
    each = assess.estimated(spec).host.bytes_per_node // 16
    others = explain(ended(folder / "runs" / "b", "host_killer", rank_bytes=each, used=200 * 10**9), folder)
    assert others.pile == "other_processes"


def test_what_would_fit_on_the_node_leaves_room_for_what_was_beyond(folder: Path) -> None:
    found = explain(ended(folder / "runs" / "a", "host_killer", rank_bytes=24 * GIB, used=200 * 10**9), folder)
    assert found.ways_title == "what would fit on the node, cheapest first:"
    assert found.ways
    assert all("host_memory_bytes" not in word for way in found.ways for word in way.overrides)


def test_a_request_of_the_host_that_failed_says_how_much(folder: Path) -> None:
    run = ended(folder / "runs" / "a", "allocator", rank_bytes=GIB, used=200 * 10**9)
    found = OutOfMemory(kind="allocator", place="host", time=2e9, rank=2, node="n", phase="load", requested_bytes=GIB)
    write_oom(run, found)
    said = explain(run, folder).said[0]
    assert said == "load on rank 2 (n) asked for 1.00 GiB on the node"


def test_on_the_cpu_a_request_of_the_host_has_its_pile_and_what_was_in_use(folder: Path) -> None:
    words = ("model=tiny", "parallel=ddp", "hardware.memory_bytes=4e9")
    run = without_memory(folder / "runs" / "a", *words, kind="allocator", place="host", phase="forward", layer=None,
        rank=0, requested_bytes=2**20, free_bytes=GIB, capacity_bytes=4 * GIB)  # fmt: skip
    found = explain(run, folder)
    assert (found.cause, found.pile) == ("out_of_memory", "logits")
    assert found.said[0].endswith("asked for 1.0 MiB with 1.00 GiB free of 4.00 GiB on the node")
    assert found.said[2].startswith("the check counts only tensors; 3.00 GiB of 4.00 GiB were in use")


def test_a_full_disk_names_the_file_and_keeps_fewer_checkpoints(folder: Path) -> None:
    run = failed(folder / "runs" / "a", *GPUS, "save.every=5", "save.keep=5", reason="rank 0: disk")
    size = assess.estimated(contents.spec_of(run)).disk.checkpoint_bytes
    file = str(run / "checkpoints" / "step-5.partial" / "0.distcp")
    facts = {
        "phase": "checkpoint_save",
        "step": 5,
        "operation": file,
        "free_bytes": 3 * size,
        "capacity_bytes": 4 * size,
    }
    write_oom(run, OutOfMemory(kind="disk", place="disk", time=2e9, rank=0, node="n", **facts))  # type: ignore[arg-type]
    found = explain(run, folder)
    assert (found.cause, found.pile) == ("disk", "checkpoints")
    assert f"{file} could not be written by rank 0, with " in found.said[0]
    assert found.ways[0].overrides == ("save.keep=1",)
    assert found.ways[-1].command == "launch resume a"
