"""What a script of the user's own may write as metrics."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.job import run_script
from launcher.rundir import contents, results
from tests.support.recorded_runs import predicted, recorded


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ({"step": 3, "loss": 2.5}, {"step": 3, "loss": 2.5}),
        ({"step": 3.0, "loss": 2}, {"step": 3, "loss": 2}),
        ({"loss": 2.5, "note": [1]}, {"step": 1, "loss": 2.5, "note": [1]}),
        ({"step": math.inf, "loss": 2.5}, {"step": 1, "loss": 2.5}),
        ({"step": "x", "loss": 2.5}, {"step": 1, "loss": 2.5}),
        ({"step": 1, "accuracy": 0.5}, None),
        ({"step": 1, "loss": "low"}, None),
        ({"step": 1, "loss": True}, None),
        ([1, 2], None),
        (3, None),
    ],
)
def test_a_line_with_a_loss_counts_whatever_else_it_lacks(line: object, row: dict[str, Any] | None) -> None:
    assert list(results.training([json.dumps(line), "half a li"])) == ([] if row is None else [row])


def test_a_speed_that_nobody_measured_is_none() -> None:
    assert results.speed([{"step": 1, "loss": 2.0}]) is None
    assert results.speed([{"loss": 2.0, "tokens_per_second": 10.0}, {"loss": 1.0}]) == 10.0
    assert results.loss([{"loss": 2.0, "eval_loss": None}]) == 2.0


def test_a_speed_is_the_median_of_the_second_half_so_that_neither_warm_up_nor_a_hiccup_counts() -> None:
    speeds = [1.0, 2.0, 50.0, 100.0, 102.0, 3.0]
    assert results.speed([{"loss": 2.0, "tokens_per_second": speed} for speed in speeds]) == 100.0
    assert results.speed([{"loss": 2.0, "tokens_per_second": math.nan}]) is None


def test_a_run_that_went_on_with_other_gpus_is_compared_by_the_lines_of_its_newest_plan(tmp_path: Path) -> None:
    now = results.predicted_speed(recorded(tmp_path / "a", speed=predicted(50.0)))
    before = [{"loss": 2.0, "tokens_per_second": 400.0, "predicted_tokens_per_second": 390.0}] * 9
    after = [{"loss": 2.0, "tokens_per_second": 95.0, "predicted_tokens_per_second": 100.0}] * 2
    assert results.speed([*before, *after], now) == 95.0
    assert results.speed(before, now) == 400.0
    assert results.speed([*before, *after]) == 400.0


@pytest.mark.parametrize("speed", [None, {}, {"step_seconds": 3.0}, {**predicted(50.0), "low": "x"}])
def test_a_plan_without_a_whole_prediction_predicts_no_speed(tmp_path: Path, speed: dict[str, float] | None) -> None:
    assert results.predicted_speed(recorded(tmp_path / "a", speed=speed)) is None
    found = results.predicted_speed(recorded(tmp_path / "b", speed=predicted(50.0)))
    assert found is not None
    assert (found.tokens_per_second, found.per_gpu, found.step_seconds) == (100.0, 50.0, 3.0)


def test_a_lock_takes_the_losses_of_a_script_that_are_numbers(tmp_path: Path) -> None:
    (tmp_path / contents.LOCK).write_text("losses: []\n")
    (tmp_path / "metrics.jsonl").write_text('3\n{"loss": NaN}\nnonsense\n{"loss": 1, "grad_norm": "?"}\n')
    results.add_losses(tmp_path)
    assert (tmp_path / contents.LOCK).read_text() == (
        'losses:\n- {"step": 1, "loss": .nan, "grad_norm": null}\n- {"step": 2, "loss": 1, "grad_norm": null}\n'
    )


def test_a_lock_takes_losses_beside_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / contents.LOCK).write_text("losses: []\n")
    (tmp_path / "metrics.jsonl").write_bytes(b'{"loss": 1, "note": "\xff"}\n\xfe\n{"loss": 2}\n')
    results.add_losses(tmp_path)
    assert (tmp_path / contents.LOCK).read_text() == (
        'losses:\n- {"step": 1, "loss": 1, "grad_norm": null}\n- {"step": 2, "loss": 2, "grad_norm": null}\n'
    )


def test_a_script_that_only_the_nodes_see_runs_from_its_own_place(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps({"script": "code/train.py"}))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("import sys, other; print(sys.argv, other.NAME, __name__)\n")
    (tmp_path / "code" / "other.py").write_text("NAME = 'other'\n")
    starter = tmp_path / "run_script.py"
    starter.write_text(Path(run_script.__file__).read_text())
    (tmp_path / "json.py").write_text("raise SystemExit('the run directory is no place to import from')")
    words = [sys.executable, str(starter), "--lr", "1"]
    for also in (
        {},
        {"PYTHONSAFEPATH": "1"},
    ):  # A user may have set it; the script's neighbours are found all the same.
        environment = {**os.environ, **also}
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("['code/train.py', '--lr', '1'] other __main__\n", "")
