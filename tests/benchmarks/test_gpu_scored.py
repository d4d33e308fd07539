"""The file of a GPU's measurements as one more file that the estimate is scored against."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.document import Document
from benchmarks.gpu.matrix import Point
from benchmarks.memory import __main__ as scoring
from launcher.base.machine import Gpu, Machine

HOST = Machine(
    gpus=(Gpu(name="NVIDIA H100 80GB HBM3", memory_bytes=85_520_809_984, reserved_bytes=None, compute_capability=9.0),),
    host_memory_bytes=2**37,
    disk_free_bytes=None,
    cpus=16,
)


def row(
    name: str, error: str | None = None, *, world: int = 1, measured: dict[str, int] | None = None
) -> dict[str, Any]:
    point = Point(name=name, world=world, overrides=("model=1b", "parallel=fsdp", "train.sequence_length=2048"))
    return {
        "name": name, "world": world, "overrides": list(point.words), "measured": measured, "error": error
    }  # fmt: skip


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """A file that was made up for this test: no such GPU was measured."""
    made_up = tmp_path / "made_up_by_a_test_no_result"
    document = Document(made_up / "gpu.json", HOST, rehearsal=False, resume=False)
    gb = 10**9
    bytes_ = {"static_bytes": 20 * gb, "peak_allocated_bytes": 25 * gb, "peak_reserved_bytes": 26 * gb}
    bytes_ |= {"device_bytes": 27 * gb}
    document.add("runs", row("alone", measured=bytes_))
    document.add("runs", row("one of eight", world=8, measured=bytes_))
    document.add("runs", row("too large", "out of memory"))
    document.add("runs", row("late", "not started: the 8 minutes were used"))
    return made_up


def scored(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, list[dict[str, Any]]]:
    monkeypatch.setattr("sys.argv", ["benchmarks.memory", "--data", str(folder), "--json"])
    status = scoring.main()
    return status, json.loads(capsys.readouterr().out)


def test_a_gpus_file_is_scored_by_counter(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, lines = scored(folder, monkeypatch, capsys)
    assert status == 0
    assert {line["file"] for line in lines} == {"gpu.json"}
    assert {line["counter"]: line["rows"] for line in lines} == {
        "static": 2, "allocated": 2, "reserved": 2, "device": 1
    }  # fmt: skip
    assert all(line["left_out"] == {"not measured": 1} for line in lines)
    assert all(line["oom_called_fitting"] == 1.0 for line in lines)


def test_a_rehearsal_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = Document(tmp_path / "gpu.json", HOST, rehearsal=True, resume=False)
    document.add("runs", row("alone", measured={"static_bytes": 1}))
    assert scored(tmp_path, monkeypatch, capsys) == (1, [])
