"""The heartbeat of a run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from launcher.base import files
from launcher.base.process import Process
from launcher.rundir import keeper


def test_a_heartbeat_is_renewed_as_long_as_the_run_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_BEAT_S", 0.01)
    with keeper.heartbeat(tmp_path):
        assert (files.read_json(tmp_path / keeper.HEARTBEAT) or {})["process"] == Process.here().as_dict()
        os.utime(tmp_path / keeper.HEARTBEAT, (0, 0))
        deadline = time.monotonic() + 300
        while not keeper.is_fresh(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert keeper.is_fresh(tmp_path)
    assert keeper.heartbeat_age(tmp_path) is None
    assert not keeper.is_fresh(tmp_path)


def test_its_age_is_told_by_the_clock_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper.begin_heartbeat(tmp_path, Process.here())
    monkeypatch.setattr(time, "time", lambda: 0.0)  # This host's clock is decades behind.
    assert (keeper.heartbeat_age(tmp_path) or 0) < 600
    beat = (tmp_path / keeper.HEARTBEAT).stat().st_mtime - 90
    os.utime(tmp_path / keeper.HEARTBEAT, (beat, beat))
    assert 90 <= (keeper.heartbeat_age(tmp_path) or 0) < 690
    assert not keeper.is_fresh(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [keeper.HEARTBEAT], "the reader leaves nothing"
