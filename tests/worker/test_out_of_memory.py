"""Real runs that run out of memory, and what they leave; texts of libraries that no machine here can make say so."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="workers need the extra 'fsdp'")

import torch
from torch.distributed.checkpoint.api import CheckpointException

from launcher.base import files
from launcher.job.memory import MemoryRecord, OutOfMemory, ran_out, records
from launcher.why.explain import explain
from launcher.worker import CheckpointError, TrainingError, out_of_memory
from launcher.worker.beat import HeartbeatWriter
from launcher.worker.engine import Context
from launcher.worker.memory import MemoryTracker
from launcher.worker.memory.live_bytes import LiveBytes
from launcher.worker.memory.live_piles import LivePiles
from launcher.worker.metrics import Metrics
from tests.support import ended_runs, training
from tests.support import out_of_memory as cases
from tests.support.helpers import make_spec, needs

MIB = 2**20


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ended")


def left_by(name: str, folder: Path) -> tuple[Path, OutOfMemory]:
    run = cases.ended(name, folder)
    found = ran_out(run)
    assert found is not None
    return run, found


QUICK = {"logits", "activations", "gather", "load", "longer batch", "leak", "host", "disk", "other process"}
"""Ends in each engine and of each kind, which `make test` makes, too."""


def some(names: Iterable[str]) -> list[Any]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough) for name in names]


def runnable(*backends: str) -> list[Any]:
    return some(name for name in cases.names(backends) if cases.CASES[name].budget is not None)


def check_budget(name: str, folder: Path) -> None:
    case = cases.CASES[name]
    run, found = left_by(name, folder)
    assert (found.kind, found.place, found.capacity_bytes) == ("budget", "device", case.budget)
    assert found.phase == case.phase is not None
    assert found.requested_bytes is not None
    assert found.free_bytes is not None
    assert found.allocated_bytes is not None
    assert case.budget is not None
    assert found.requested_bytes > found.free_bytes == case.budget - found.allocated_bytes
    assert sum(found.piles.values()) == found.allocated_bytes
    assert found.operation is not None
    assert found.largest[0].bytes == max(each.bytes for each in found.largest)
    assert found.snapshot is not None
    rows = files.read_json(run / found.snapshot)
    assert rows is not None
    assert sum(row["bytes"] for row in rows["allocations"]) == found.allocated_bytes
    state = files.read_json(run / "state.json")
    assert state is not None
    assert state["reason"].startswith(f"rank {found.rank}: out of memory in {str(case.phase).replace('_', ' ')}")
    if found.step:
        last = found.step if found.phase in ("evaluation", "checkpoint_save") else found.step - 1
        lines = [line.step for line in records(run) if line.rank == found.rank]
        assert lines == list(range(last + 1)), "each whole step before it has its line"
        assert found.last is not None
        assert found.last.step == last


@pytest.mark.parametrize("name", runnable("fsdp"))
def test_a_rank_of_fsdp_or_ddp_that_needs_more_than_its_budget_ends_and_says_what_was_alive(
    name: str, folder: Path
) -> None:
    check_budget(name, folder)


@pytest.mark.parametrize("name", runnable("deepspeed"))
def test_a_rank_of_deepspeed_that_needs_more_than_its_budget_ends_and_says_what_was_alive(
    name: str, folder: Path
) -> None:
    needs("deepspeed", "the extra 'deepspeed'")
    check_budget(name, folder)


@pytest.mark.parametrize("name", runnable("megatron"))
def test_a_rank_of_megatron_that_needs_more_than_its_budget_ends_and_says_what_was_alive(
    name: str, folder: Path
) -> None:
    needs("megatron.core", "the extra 'megatron'")
    check_budget(name, folder)


@pytest.mark.parametrize("name", some(["logits", "optimizer", "gather", "leak"]))
def test_the_largest_or_the_grown_pile_is_there(name: str, folder: Path) -> None:
    _, found = left_by(name, folder)
    pile = cases.CASES[name].pile
    without = {"parameters", "gradients"}
    assert pile == max(found.piles.keys() - without, key=found.piles.__getitem__) or found.piles[str(pile)] > MIB


def test_a_run_within_its_budget_trains_as_one_without(tmp_path: Path) -> None:
    words = ("parallel=ddp", "train.steps=4", "train.eval_every=2", "save.every=3")
    kept = (*words, "hardware.memory_bytes=4000000", "train.enforce_memory=true")
    found = training.train_all(tmp_path, {"free": words, "kept": kept}, ranks=1)
    assert found["kept"] == found["free"]
    assert [line.step for line in records(tmp_path / "kept")] == [0, 1, 2, 2, 3, 3, 4], "every step has a line"
    assert all(line.device_bytes == 4_000_000 for line in records(tmp_path / "kept"))
    assert not (tmp_path / "kept" / "oom.json").exists()


def test_a_longer_batch_and_its_block_are_named(folder: Path) -> None:
    needs("deepspeed", "the extra 'deepspeed'")
    _, found = left_by("longer batch", folder)
    assert found.tokens is not None
    assert found.last is not None
    assert found.tokens > 4 * (found.last.tokens or 0) > 0
    assert (found.step, found.layer) == (3, 1)


def test_a_limit_of_the_process_is_told_from_the_nodes_memory(folder: Path) -> None:
    run, found = left_by("host", folder)
    assert (found.kind, found.place, found.operation) == ("allocator", "host", "aten.mm.default")
    assert found.requested_bytes == 2**30 > (found.free_bytes or 0)
    assert found.piles["parameters"] > 0
    assert "out of host memory in forward of step 1: asked for 1.00 GiB with" in (run / "state.json").read_text()


@pytest.mark.skipif(not cases.can_make("disk"), reason="only root mounts a small disk")
@pytest.mark.parametrize("name", some(["disk", "disk in the background"]))
def test_a_full_disk_is_the_end_of_a_last_save(name: str, folder: Path) -> None:
    run, found = left_by(name, folder)
    assert (found.kind, found.place, found.phase, found.step) == ("disk", "disk", "checkpoint_save", 2)
    assert (found.operation, found.capacity_bytes) == (str(run / "checkpoints"), 2**19)
    assert "no space left on the disk" in (run / "state.json").read_text()


def test_metrics_that_find_no_space_name_their_file(tmp_path: Path) -> None:
    metrics = object.__new__(Metrics)
    with contextlib.suppress(OSError), Path("/dev/full").open("a") as full:  # Closing it fails as well.
        metrics._file = full
        try:
            metrics._write({"step": 1})
        except OSError as error:
            out_of_memory.write(tmp_path, error)
    found = ran_out(tmp_path)
    assert found is not None
    assert (found.kind, found.operation) == ("disk", str(tmp_path / "metrics.jsonl"))


def test_the_first_rank_that_ends_writes_and_no_later_one(tmp_path: Path) -> None:
    out_of_memory.write(tmp_path, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."))
    out_of_memory.write(tmp_path, MemoryError())
    found = ran_out(tmp_path)
    assert found is not None
    assert (found.kind, found.requested_bytes) == ("device", 20 * MIB)


def test_an_error_of_another_kind_leaves_nothing_and_a_folder_that_cannot_be_written_is_no_second_error(
    tmp_path: Path,
) -> None:
    out_of_memory.write(tmp_path, ValueError("no such column"))
    assert not (tmp_path / "oom.json").exists()
    (tmp_path / "oom.json").mkdir()
    out_of_memory.write(tmp_path, MemoryError())
    out_of_memory.write(tmp_path / "absent" / "\0", MemoryError())


TEXTS = {
    "CUDA out of memory. Tried to allocate 1.40 GiB. GPU 0 has a total capacity of 79.11 GiB of which 921.00 MiB is "
    "free.": ("device", "device"),
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call": (
        "device",
        "device",
    ),
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`": ("device", "device"),
    "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled cuda error, NCCL version 2.27.3\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'": (
        "device",
        "device",
    ),
    "Failed to CUDA calloc async 4 bytes": ("device", "device"),
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4096 bytes. Error code 12 (Cannot allocate memory)": ("allocator", "host"),
    "unable to mmap 4194304 bytes from file </x>: Cannot allocate memory (12)": ("allocator", "host"),
}
"""Texts as torch, CUDA, cuBLAS and NCCL print them; no GPU made them here."""


@pytest.mark.parametrize("text", TEXTS)
def test_recorded_texts_of_libraries_are_understood(text: str) -> None:
    found = out_of_memory.kind_of(RuntimeError(text))
    assert found is not None
    assert found[:2] == TEXTS[text]


def test_the_error_within_the_errors_of_frameworks_is_found() -> None:
    inner = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")
    try:
        try:
            raise inner
        except RuntimeError as error:
            raise TrainingError("Megatron-LM ended") from error
    except TrainingError as error:
        found = out_of_memory.kind_of(error)
    assert found is not None
    assert found[2] is inner
    of_a_save = CheckpointException("writing", {0: (inner, None)})  # type: ignore[dict-item]
    found = out_of_memory.kind_of(of_a_save)
    assert found is not None
    assert found[0] == "device"


def test_what_another_rank_has_found_is_not_taken_for_this_ranks_own() -> None:
    heard = CheckpointError("the checkpoint of step 2 could not be written to x: OutOfMemoryError: CUDA out of memory")
    assert out_of_memory.kind_of(heard) is None
    full = CheckpointError("the checkpoint of step 2 could not be written to x: no space left on the disk; there was")
    assert out_of_memory.kind_of(full) is not None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "allocator"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "allocator"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x"), "disk"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "x"), "disk"),
        (OSError(errno.EFBIG, os.strerror(errno.EFBIG), "x"), "disk"),
    ],
)
def test_errors_of_the_system_are_understood(error: Exception, kind: str) -> None:
    found = out_of_memory.kind_of(error)
    assert found is not None
    assert found[0] == kind


def test_an_operation_beyond_the_budget_is_undone_and_the_next_that_fits_goes_on() -> None:
    live, told = LiveBytes(), []
    live.limit, live.refused = 1000, lambda requested, operation: told.append((requested, operation, live.bytes))
    with live:
        kept = torch.ones(100)
        with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 0\.0 MiB"):
            torch.ones(200)
        assert live.bytes == kept.nbytes
        other = torch.ones(100)
    assert told == [(800, "aten.ones.default", 400)]
    assert live.bytes == kept.nbytes + other.nbytes


def test_a_storage_that_is_resized_beyond_the_budget_keeps_its_size() -> None:
    live = LivePiles()
    live.limit = 1000
    with live:
        kept = torch.ones(100)
        storage = kept.untyped_storage()
        with pytest.raises(torch.OutOfMemoryError):
            storage.resize_(1200)
        assert (storage.nbytes(), live.bytes) == (400, 400)
        storage.resize_(0)
        storage.resize_(1000)
    assert live.bytes == 1000


def test_a_follower_that_is_entered_twice_counts_once_and_lasts_until_the_outer_end() -> None:
    live = LiveBytes()
    with live:
        with live:
            inner = torch.ones(10)
        outer = torch.ones(10)
    behind = torch.ones(10)
    assert live.bytes == inner.nbytes + outer.nbytes == 2 * behind.nbytes


def test_the_documents_of_the_cases_are_json_for_everyone(folder: Path) -> None:
    run, _ = left_by("logits", folder)
    assert json.loads((run / "oom.json").read_text())["schema"] == 1


SNAPSHOT = {
    "segments": [
        {
            "blocks": [
                {"size": 512, "state": "inactive", "frames": []},
                {
                    "size": 4096,
                    "state": "active_allocated",
                    "frames": [{"name": "forward", "filename": "/x/linear.py", "line": 134}],
                },
            ]
        },
        {"blocks": [{"size": 8192, "state": "active_allocated", "frames": []}]},
    ],
    "device_traces": [],
}
"""As ``torch.cuda.memory._snapshot`` documents it; no GPU made it."""


def test_a_recorded_snapshot_of_a_gpu_is_kept_for_torchs_viewer_with_its_largest_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 70 * MIB)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 75 * MIB)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: SNAPSHOT)
    spec = make_spec("model=tiny")
    pulse = HeartbeatWriter()
    tracker = MemoryTracker(pulse.enter)
    context = Context(
        spec=spec, directory=tmp_path, rank=3, world=4, device=torch.device("cpu"), memory=tracker, beat=pulse
    )
    monkeypatch.setattr(out_of_memory, "_watches", [])
    with out_of_memory.watched(context):
        pulse.step(120)
        tracker.enter("backward")
        tracker.layers.now = 17
        out_of_memory._watches[-1].observed(0, 40 * MIB, 100 * MIB, 20 * MIB)
    out_of_memory.write(tmp_path, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 40.00 MiB."))
    found = ran_out(tmp_path)
    assert found is not None
    assert (found.rank, found.step, found.phase, found.layer) == (3, 120, "backward", 17)
    assert (found.requested_bytes, found.free_bytes, found.capacity_bytes) == (40 * MIB, 20 * MIB, 100 * MIB)
    assert (found.allocated_bytes, found.reserved_bytes) == (70 * MIB, 75 * MIB)
    assert [(each.bytes, each.operation) for each in found.largest] == [(8192, None), (4096, "forward (linear.py:134)")]
    assert found.snapshot is not None
    assert pickle.loads((tmp_path / found.snapshot).read_bytes()) == SNAPSHOT


def test_what_autograd_saved_in_a_step_that_was_not_measured_is_told_from_what_was_left_over_before() -> None:
    last = MemoryRecord(step=4, rank=0, node="n", time=1.0, tokens=128, phases={}, static={"temporary": 10})
    told = OutOfMemory(kind="device", place="device", time=2.0, rank=0, node="n", phase="forward", last=last)
    found = out_of_memory._piles_of_a_pass(replace(told, piles={"parameters": 5, "temporary": 100}), measured=False)
    assert found == {"parameters": 5, "activations": 90, "temporary": 10}
    assert out_of_memory._piles_of_a_pass(replace(told, piles={"temporary": 100}), measured=True) == {"temporary": 100}
    saving = replace(told, phase="checkpoint_save", piles={"temporary": 100})
    assert out_of_memory._piles_of_a_pass(saving, measured=False) == {"temporary": 100}


@pytest.mark.parametrize("name", some(cases.CASES))
def test_why_names_the_pile_of_every_real_end(name: str, folder: Path) -> None:
    if name == "other process":
        pytest.skip("tests/submission/test_killing.py makes it")
    if name not in cases.names(("fsdp",)):
        needs("deepspeed" if name in cases.names(("deepspeed",)) else "megatron.core")
    if not cases.can_make(name):
        pytest.skip("this machine lets nobody make it")
    found = explain(cases.ended(name, folder), folder)
    assert found.pile == ended_runs.pile_of(name), found.said
    assert found.where.phase == cases.CASES[name].phase
    assert found.cause == ("disk" if name.startswith("disk") else "out_of_memory")
    assert found.ways or any("no single change makes this run fit" in each for each in found.said)
