"""A run on this machine as its launcher shows it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from launcher.actions import follow
from launcher.rundir import state
from launcher.views import pairs
from tests.support.helpers import composed_once
from tests.support.recorded_runs import line, predicted, recorded


def test_the_progress_of_a_run_says_how_long_it_will_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follow, "_POLL_S", 0.01)
    run, spec = recorded(tmp_path / "a", now="running"), composed_once("model=tiny")

    def train() -> None:
        for _ in range(8):
            time.sleep(0.05)
            with (run / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(line(10, 2.0)) + "\n")
        state.put(run, "cancelled", reason="stopped")

    thread = threading.Thread(target=train)
    thread.start()
    assert follow.follow(run, spec, show=print) == 130
    thread.join()
    said = " ".join(capsys.readouterr().err.split())
    assert "10/100 last loss 2.0000 100 tokens/s 3 min left" in said


def test_the_table_at_the_end_compares_the_speed_of_a_plan_that_was_given_a_prediction(tmp_path: Path) -> None:
    steps = [line(step, 3.0, speed) for step, speed in ((1, 10.0), (2, 40.0), (3, 100.0), (4, 120.0))]
    run = recorded(tmp_path / "a", steps=steps, now="finished", speed=predicted(66.0))
    assert pairs.summary_table(run).splitlines()[1:-1] == [
        "                            predicted     measured    error",
        "tokens/s a GPU                   66.0         55.0   +20.0%",
        "loss 3.0000 -> 3.0000 in 4 steps",
        "110 tokens/s (median of the second half)",
    ]


def test_the_table_at_the_end_says_nothing_of_a_prediction_on_the_cpu_where_there_is_none(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", steps=[line(1, 3.0)], now="finished")
    assert "predicted" not in pairs.summary_table(run)


def test_bytes_of_a_script_that_are_no_text_stop_nothing(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", now="finished")
    (run / "checkpoints").rmdir()
    (run / "metrics.jsonl").write_bytes(b'\xfe\n{"loss": 2, "note": "\xff"}\n')
    assert list(follow._news(run)) == [[{"step": 1, "loss": 2, "note": "\ufffd"}]]
