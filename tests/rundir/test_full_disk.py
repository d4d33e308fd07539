"""A run directory on a file system of every small size: the record is whole there, or nothing of it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from launcher import api
from launcher.base.process import Process
from launcher.preflight.plan import Plan
from launcher.rundir import keeper, record, state, status
from tests.support.recorded_runs import recorded
from tests.support.slurm_runs import launch, wait
from tests.support.small_disk import mounted

WORDS = ("model=tiny", "hardware.device=cpu", "cluster.gpus_per_node=1", "script=train.py")
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") >> 10
SIZES = range(PAGE_KIB, 512, PAGE_KIB)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")
    return tmp_path


@pytest.fixture
def disk(folder: Path) -> Path:
    return folder / "disk"


def names(run: Path) -> set[str]:
    return {str(path.relative_to(run)) for path in run.rglob("*")}


def outcomes(plan: Plan, disk: Path) -> Iterator[str | None]:
    """Of every size what the refusal says, or None where the record is there, which is then looked at and removed."""
    whole = record.record(plan, disk.parent / "whole", overrides=WORDS, forced=True)
    with mounted(disk, SIZES[0]) as resize:
        for kib in SIZES:
            resize(kib)
            try:
                run = record.record(plan, disk / "run", overrides=WORDS, forced=True)
            except record.RecordNotWritten as refused:
                assert not list(disk.iterdir()), f"{kib} KiB"
                yield str(refused)
            else:
                assert names(run) == names(whole), f"{kib} KiB"
                assert [path.name for path in disk.iterdir()] == ["run"]
                for path in run.glob("*.json"):
                    json.loads(path.read_text())
                subprocess.run(["rm", "-r", run], check=True)
                yield None


def test_a_record_is_whole_or_absent_on_a_disk_of_every_size(disk: Path) -> None:
    found = list(outcomes(api.show(WORDS).plan, disk))
    refused = [said for said in found if said is not None]
    assert 0 < len(refused) < len(found), "some sizes are too small, and others are not"
    assert found == [*refused, *[None] * (len(found) - len(refused))], "what a smaller disk takes, a larger one does"
    assert set(refused) == {
        f"the run directory {disk}/run cannot be written: No space left on device, and starting a job takes "
        "256 KiB besides its record; run.directory=... puts it elsewhere"
    }


@pytest.mark.parametrize("verb", [("run",), ("run", "--json"), ("-m", "train.seed=1,2")])
def test_a_launch_on_a_disk_that_is_full_says_so_and_leaves_nothing(verb: Sequence[str], disk: Path) -> None:
    with mounted(disk, SIZES[0]) as resize:
        for kib in (*range(PAGE_KIB, 80, PAGE_KIB), 120, 200, 300):
            resize(kib)
            answer = launch(*verb, *WORDS, "--force", f"run.directory={disk}/run")
            assert answer.status == 4, f"{kib} KiB: {answer.err}"
            assert "cannot be written: No space left on device" in answer.err
            assert "Traceback" not in answer.err
            assert not list(disk.iterdir()), f"{kib} KiB"
        assert launch("status", "--json").json["runs"] == []


def test_a_sweep_of_which_the_second_run_has_no_place_leaves_nothing(disk: Path) -> None:
    room = record.ROOM_BYTES >> 10
    with mounted(disk, SIZES[0]) as resize:
        for kib in range(room + 60, room + 110, PAGE_KIB):  # The first has its place somewhere among these.
            resize(kib)
            answer = launch("-m", *WORDS, "--force", f"run.directory={disk}/sweep", "train.seed=1,2")
            assert answer.status == 4, f"{kib} KiB: {answer.err}"
            assert not list(disk.iterdir()), f"{kib} KiB"


def test_a_job_that_cannot_be_noted_is_ended_and_its_run_has_failed_to_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Process] = []

    def full(run: Path, keeper: Process) -> NoReturn:
        started.append(keeper)
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(keeper, "begin_heartbeat", full)
    answer = launch(*WORDS, "run.name=a", "--force")
    assert answer.status == 4
    assert f"the run directory {folder}/runs/a cannot be written: No space left on device" in answer.err
    [process] = started
    wait("the end of the job", lambda: not process.alive)
    now = status.read(folder / "runs" / "a")
    assert (now.state, str(now.reason).partition(":")[0]) == ("failed", "its submission failed")


def test_a_run_whose_keeper_is_gone_says_that_its_disk_is_full(disk: Path) -> None:
    with mounted(disk, 256):
        run = recorded(disk / "run")
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        keeper = Process.of(child.pid)
        state.put(run, "running", keeper=keeper.as_dict())
        child.communicate(b"\n")
        assert "disk" not in str(status.read(run).reason)
        with (run / "filler").open("wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free)
        now = status.read(run)
        assert now.state == "lost"
        assert str(now.reason).endswith("is gone; the disk is full: it has 0 KiB left")
