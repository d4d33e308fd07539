"""Runs whose clock was set back: between two events, a save and its end, a heartbeat and the look at it."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from launcher.base.process import Process
from launcher.rundir import attempts, keeper
from launcher.worker import process
from tests.support.recorded_runs import line, recorded
from tests.support.slurm_runs import launch

NOON, HOUR = 1.7e9, 3600.0


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    steps = [{**line(number, 4.0 - number), "time": NOON - number * HOUR} for number in (1, 2, 3)]
    run = recorded(tmp_path / "runs" / "a", steps=steps, now="finished")
    told = [("queued", 0.0), ("running", 1.0), ("start", 2.0), ("end", 1.0), ("start", 0.5), ("end", -9.0)]
    lines = [{"time": NOON + at * HOUR, "kind": kind, "text": kind, "step": 2, "state": "failed"} for kind, at in told]
    (run / "events.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    return run


@pytest.mark.parametrize("verb", ["status", "logs", "why", "watch --once", "report --output page.html"])
def test_no_verb_says_that_something_took_less_than_no_time(run: Path, verb: str) -> None:
    name, *options = verb.split()
    answer = launch(name, run.name, *options)
    assert answer.status == 0, answer.err
    page = Path("page.html").read_text() if name == "report" else ""
    for text in (answer.out, page):
        assert "after -" not in text
    if name in ("why", "report"):
        assert "failed" in answer.out + page


def test_a_heartbeat_of_before_the_clock_was_set_back_is_no_fresh_one(tmp_path: Path) -> None:
    keeper.begin_heartbeat(tmp_path, Process.here())
    assert keeper.is_fresh(tmp_path)
    beat = (tmp_path / keeper.HEARTBEAT).stat().st_mtime + HOUR
    os.utime(tmp_path / keeper.HEARTBEAT, (beat, beat))
    assert not keeper.is_fresh(tmp_path)


def test_a_checkpoint_counts_as_progress_though_the_clock_was_set_back_before_it(tmp_path: Path) -> None:
    for step in (1, 2):
        (tmp_path / "checkpoints" / f"step-{step}").mkdir(parents=True)
        if step == 2:
            os.utime(tmp_path / "checkpoints" / "step-2", (NOON - HOUR, NOON - HOUR))
            break
        os.utime(tmp_path / "checkpoints" / "step-1", (NOON, NOON))
        first = attempts.begin(tmp_path, "7_0")
        assert attempts.begin(tmp_path, "7_1").fruitless == first.fruitless + 1
    assert attempts.begin(tmp_path, "7_2").fruitless == 0
    assert attempts.begin(tmp_path, "7_3").fruitless == 1


def test_a_save_during_which_the_clock_was_set_back_took_nobody_knows_how_long(tmp_path: Path) -> None:
    saved = tmp_path / "checkpoints" / "step-1" / "state.json"
    saved.parent.mkdir(parents=True)
    saved.write_text("{}")
    later = saved.stat().st_mtime + HOUR
    os.utime(saved, (later, later))
    assert attempts.checkpoint_seconds(tmp_path) is None


@pytest.mark.parametrize("before", [NOON, None])
def test_a_rank_follows_the_error_of_another_though_the_clock_was_set_back(
    before: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, ended, over = tmp_path / "error.rank1.json", threading.Event(), threading.Event()
    for name in ("error.rank0.json", *(["error.rank1.json"] if before else [])):  # Of an earlier attempt.
        (tmp_path / name).write_text("{}")
        os.utime(tmp_path / name, (NOON, NOON))

    def end(status: int) -> None:
        ended.set()
        over.set()

    monkeypatch.setattr(process, "_LOOK_S", 0.01)
    monkeypatch.setattr(process, "_GRACE_S", 0.01)
    monkeypatch.setattr(os, "_exit", end)
    follower = threading.Thread(target=process._follow_failures, args=(tmp_path, 0, over))
    follower.start()
    assert not ended.wait(0.5), "what was there is of an earlier attempt"
    error.write_text("{}")
    os.utime(error, (NOON - HOUR, NOON - HOUR))
    assert ended.wait(120)
    follower.join()
