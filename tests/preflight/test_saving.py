"""The bytes that checkpoints take, the time of a save by the storage's bandwidth, and the warnings about both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.base.units import GIB
from launcher.data.look import look
from launcher.preflight import assess, findings, saving
from launcher.preflight.assess_here import Judging, assess_here
from launcher.preflight.measured.constants import Storage, storage_of
from launcher.preflight.measured.file import MeasuredRun, Row
from launcher.preflight.measured.known import Measured
from launcher.spec import RunSpec
from launcher.views.check import text
from tests.support.helpers import make_spec
from tests.support.measured_rows import row, users_own, written
from tests.support.rule_cases import NODE

SEVEN = (*NODE, "model=7b", "parallel=fsdp")
SEVENTY = ("hardware=h100_80g", "model=70b", "parallel=fsdp", "cluster=slurm", "cluster.nodes=8", "checkpointing=full")


def saves(spec: RunSpec, stored: saving.Stored | None = None) -> saving.Saves:
    return saving.predicted(spec, assess.estimated(spec).disk, stored)


def margins(*words: str) -> list[str]:
    """The rules of the warnings about the margin to save in."""
    found = assess.assess(make_spec(*SEVENTY, *words), search=None)
    return [warning.rule for warning in found.warnings if warning.path == "cluster.save_margin_s"]


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ((), 1),
        (("save.last=false",), 0),
        (("save.every=10", "save.keep=100", "train.steps=2000"), 101),
        (("save.every=10", "save.keep=100", "train.steps=100"), 10),
        (("save.every=10", "save.keep=3", "train.steps=30", "save.last=false"), 2),
        (("save.every=10", "save.keep=2", "train.steps=31"), 3),
    ],
)
def test_as_many_checkpoints_are_counted_as_are_on_disk_at_once(words: tuple[str, ...], number: int) -> None:
    disk = saves(make_spec(*SEVEN, *words)).disk
    assert disk.kept_bytes == number * disk.checkpoint_bytes


def test_the_document_and_the_text_say_the_bytes_on_disk_and_the_seconds_of_a_save() -> None:
    spec = make_spec(*SEVEN, "save.every=10", "save.keep=100", "train.steps=2000", "cluster.storage_bandwidth=4e9")
    found = assess.assess(spec, search=None)
    size = assess.estimated(spec).disk.checkpoint_bytes
    assert assess.as_json(found)["disk"] == {
        "checkpoint_bytes": size,
        "capacity_bytes": None,
        "total_bytes": 101 * size,
        "save_seconds": size / 4e9,
        "blocking_seconds": size / 4e9,
        "storage_bandwidth": 4e9,
    }
    said = " ".join(text.as_text(found).split())
    assert (
        f"up to {101 * size / GIB:.2f} GiB on disk (100 kept plus the one being written), written in 20 s"
        " at 4.00 GB/s (cluster.storage_bandwidth)"
    ) in said


def test_a_margin_that_is_shorter_than_a_save_is_warned_of_with_the_bandwidth_and_without() -> None:
    [slow] = margins("cluster.storage_bandwidth=2e9")
    assert slow.endswith(
        "writes a checkpoint of 770.87 GiB, which takes 7 min at 2.00 GB/s (cluster.storage_bandwidth)"
    )
    assert margins("cluster.storage_bandwidth=20e9") == []
    [unknown] = margins("cluster.save_margin_s=5")
    assert "takes 13 s even with the fastest storage that NVIDIA recommends for 8 nodes" in unknown
    assert margins() == []


def test_the_margin_that_is_proposed_is_shorter_than_the_time_limit_beside_it() -> None:
    words = ("cluster.storage_bandwidth=2e9", "cluster.time_limit_min=10", "train.steps=1")
    found = assess.assess(make_spec(*SEVENTY, *words), search=None)
    [way] = [way for warning in found.warnings for way in warning.way_out if warning.path == "cluster.save_margin_s"]
    assert not findings.errors(make_spec(*SEVENTY, *words, *way.split()))


def test_of_a_background_save_training_waits_for_the_part_that_was_measured() -> None:
    measured = Storage(bandwidth=1e9, blocking=0.1, runs=2, nodes=1)
    spec = make_spec(*SEVEN, "save.every=10", "save.async=true")
    found = saves(spec, lambda spec, size: measured)
    assert found.seconds is not None
    assert found.blocking_seconds == pytest.approx(0.1 * found.seconds)
    assert found.source == "measured in 2 runs on 1 node"
    assert saves(make_spec(*SEVEN, "save.every=10"), lambda spec, size: measured).blocking_seconds == found.seconds
    given = saves(make_spec(*SEVEN, "save.async=true", "cluster.storage_bandwidth=1e9"))
    assert (given.seconds, given.blocking_seconds) == (found.seconds, None)


def wrote(size: int, seconds: float, *, nodes: int = 1, blocking: float | None = None, number: int = 0) -> Row:
    measured = MeasuredRun(checkpoint_bytes=size, save_seconds=seconds, blocking_seconds=blocking)
    return row(number, nodes=nodes, measured=measured)


def test_the_newest_runs_of_the_cluster_tell_its_storage_if_they_wrote_enough_on_as_many_nodes() -> None:
    def found(*rows: Row, nodes: int = 1, size: int = 100 * GIB) -> float | None:
        known = storage_of(rows, "local", nodes, size)
        return None if known is None else known.bandwidth / GIB

    assert found(wrote(10 * GIB, 5.0)) == 2.0
    assert found(wrote(GIB // 2, 1.0)) is None, "a small save is one of opening files"
    assert found(wrote(GIB // 2, 1.0), size=GIB) == 0.5
    assert found(wrote(10 * GIB, 5.0, nodes=4), nodes=2) is None
    assert found(wrote(10 * GIB, 5.0, nodes=4), wrote(10 * GIB, 10.0), nodes=8) == 2.0
    assert found(*(wrote(10 * GIB, 10.0 / n, number=n) for n in range(1, 8))) == 5.0, "the newest five"
    assert found(replace(wrote(10 * GIB, 5.0), cluster="slurm")) is None
    assert storage_of([wrote(10 * GIB, 5.0, blocking=1.0)], "local", 1, GIB) == (2.0 * GIB, 0.2, 1, 1)


def test_a_check_takes_the_bandwidth_that_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    written(users_own(), wrote(10 * GIB, 5.0))
    judged = assess_here(make_spec(*SEVEN), Judging(looking=look, search=None, measured=Measured()))
    assert judged.saves is not None
    assert judged.saves.bandwidth == 2 * GIB
    own = make_spec(*SEVEN, "cluster.storage_bandwidth=1e9")
    judged = assess_here(own, Judging(looking=look, search=None, measured=Measured()))
    assert judged.saves is not None
    assert judged.saves.bandwidth == 1e9


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets what the file system of the run's folder has free."""
    return lambda size: monkeypatch.setattr(saving, "disk_free", lambda folder: size)


def test_checkpoints_beyond_the_file_system_of_the_runs_folder_are_warned_of(free: Callable[[int], None]) -> None:
    spec = make_spec(*SEVEN, "save.every=10", "save.keep=100", "train.steps=2000")
    disk = assess.estimated(spec).disk
    free(1000 * GIB)
    [warning] = saving.too_large_here(spec, disk)
    assert warning.where == "save.keep=100"
    assert warning.rule.endswith("and the file system of runs on this machine has 1000.00 GiB free")
    assert warning.way_out == ("save.keep=12", "run.directory=/path/on/a/larger/disk")
    fewer = assess.estimated(make_spec(*SEVEN, "save.every=10", "save.keep=12", "train.steps=2000")).disk
    assert not list(saving.too_large_here(spec, fewer))
    free(disk.kept_bytes)
    assert not list(saving.too_large_here(spec, disk))


def test_one_checkpoint_is_held_against_this_machine_only_where_the_run_is_for_it(
    free: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    free(GIB)
    queued = make_spec(*SEVENTY)
    disk = assess.estimated(queued).disk
    monkeypatch.setattr("launcher.slurm.jobs.installed", lambda: False)
    assert not list(saving.too_large_here(queued, disk))
    monkeypatch.setattr("launcher.slurm.jobs.installed", lambda: True)
    [warning] = saving.too_large_here(queued, disk)
    assert "770.87 GiB (one), and the file system of runs" in warning.rule
    assert not list(saving.too_large_here(queued, replace(disk, capacity_bytes=GIB))), "the verdict says it"
