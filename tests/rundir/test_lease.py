"""The heartbeat of a run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from launcher.base import files
from launcher.base.process import Process
from launcher.rundir import lease


def test_a_heartbeat_is_renewed_as_long_as_the_run_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "_BEAT_S", 0.01)
    with lease.kept(tmp_path):
        assert (files.read_json(tmp_path / lease.FILE) or {})["process"] == Process.here().as_dict()
        os.utime(tmp_path / lease.FILE, (0, 0))
        deadline = time.monotonic() + 300
        while not lease.fresh(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert lease.fresh(tmp_path)
    assert lease.age(tmp_path) is None
    assert not lease.fresh(tmp_path)


def test_its_age_is_told_by_the_clock_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease.begin(tmp_path, Process.here())
    monkeypatch.setattr(time, "time", lambda: 0.0)  # This host's clock is decades behind.
    assert (lease.age(tmp_path) or 0) < 600
    beat = (tmp_path / lease.FILE).stat().st_mtime - 90
    os.utime(tmp_path / lease.FILE, (beat, beat))
    assert 90 <= (lease.age(tmp_path) or 0) < 690
    assert not lease.fresh(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [lease.FILE], "the reader leaves nothing"
