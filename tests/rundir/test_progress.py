"""How far a run has come, from what its worker has written so far."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.rundir import live, results, status
from launcher.views import pairs
from launcher.views import runs as view
from launcher.views.page import curves
from tests.support.recorded_runs import line, predicted, recorded
from tests.support.slurm_runs import launch


def test_the_time_left_is_that_of_the_steps_to_come_at_the_speed_of_the_newest(tmp_path: Path) -> None:
    slow = {**line(1, 9.0), "step_seconds": 500.0}
    run = recorded(tmp_path / "a", "train.steps=100", steps=[slow, *(line(step, 1.0) for step in range(2, 41))])
    (run / "checkpoints" / "step-00000030").mkdir()
    (run / "checkpoints" / "step-00000030" / "state.json").write_text("{}")
    (run / "checkpoints" / "step-00000040.partial").mkdir()
    now = results.read_progress(run)
    assert (now.step, now.steps, now.loss, now.seconds_left, now.checkpoint_step) == (40, 100, 1.0, 120.0, 30)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 41, "lo')
    assert results.read_progress(run).step == 40, "a line that is being written does not count"


def test_before_the_first_line_the_time_left_is_by_the_plans_speed(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", "train.steps=100", now="running", speed=predicted(50.0))
    now = results.read_progress(run)
    assert (now.seconds_left, now.left_is) == (300.0, "predicted")
    assert "5 min (predicted)" in "\n".join(launch("status", str(run)).out.splitlines())
    (run / "metrics.jsonl").write_text(json.dumps(line(1, 9.0)))
    now = results.read_progress(run)
    assert (now.seconds_left, now.left_is) == (198.0, "measured")
    unknown = results.read_progress(recorded(tmp_path / "b", "train.steps=100", now="running"))
    assert (unknown.seconds_left, unknown.left_is) == (None, None)


def test_megatrons_own_mark_tells_its_newest_whole_checkpoint(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a")
    (run / "checkpoints" / "iter_0000010").mkdir()
    (run / "checkpoints" / "iter_0000020").mkdir()
    (run / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("10")
    assert results.read_progress(run).checkpoint_step == 10


def test_a_script_may_write_any_part_of_a_line(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", "script=train.py", steps=[{"step": 3, "loss": float("nan")}])
    now = results.read_progress(run)
    assert (now.step, now.steps, now.loss, now.tokens_per_second, now.seconds_left) == (3, None, None, None, None)
    assert results.metrics_line({"step": 3, "accuracy": 1}, None) == "step 3"


def test_a_line_of_metrics_is_told_in_words() -> None:
    found = json.loads('{"step": 7, "loss": 2.5, "eval_loss": 2.25, "grad_norm": 1.5, "learning_rate": 0.0003}')
    shown = "step 7/100  loss 2.5000  held-out loss 2.2500  gradient norm 1.500  learning rate 3.00e-04"
    assert results.metrics_line({**found, "tokens_per_second": 1234.5}, 100) == f"{shown}  1,234 tokens/s"


def test_an_evaluation_is_told_by_the_names_of_its_sets(tmp_path: Path) -> None:
    one = {"step": 7, "loss": 2.5, "eval_loss": 2.25, "eval_loss/code": 2.0, "eval_loss/math": 2.5}
    more = {"eval_perplexity": 9.48774, "eval_perplexity/code": 7.38906, "eval_perplexity/math": None}
    text = "held-out loss 2.2500 (perplexity 9.4877): code 2.0000 (7.3891), math 2.5000"
    assert results.metrics_line({**one, **more, "grad_norm": 1.0}, 100) == (
        f"step 7/100  loss 2.5000  {text}  gradient norm 1.000"
    )
    run = recorded(
        tmp_path / "a", "train.steps=100", now="running", steps=[line(6, 9.0), {**one, **more}, line(8, 9.0)]
    )
    found = status.read(run).progress.evaluation
    assert found == {
        "step": 7,
        "loss": 2.25,
        "perplexity": 9.48774,
        "sets": {"code": {"loss": 2.0, "perplexity": 7.38906}, "math": {"loss": 2.5, "perplexity": None}},
    }
    table = view.table([status.read(run)], placed=False, folder=tmp_path)
    assert table[2] == f"  {text}"
    frame = " ".join(" ".join(view.frame(status.read(run), live.read([status.read(run)])[0], 80)).split())
    assert "held out 2.2500 (perplexity 9.4877): code 2.0000 (7.3891), math 2.5000 at step 7" in frame
    assert f"{text} at step 7 " in " ".join(pairs.summary_table(run).split())
    chart, *_ = curves._of_run(results.steps(run))
    assert {row["of"] for row in chart.spec["data"]["values"]} == {
        *("training", "held out", "held out: code", "held out: math"),
    }
    [sentence] = curves._evaluated(results.steps(run))
    assert f"The last evaluation, at step 7: {text}." in str(sentence)


def test_of_a_long_file_of_metrics_the_newest_lines_alone_are_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recorded(tmp_path / "a", steps=(line(step, 1.0) for step in range(1, 301)))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 301, "lo')
    parsed, whole = [], json.loads

    def counted(text: str) -> object:
        parsed.append(text)
        return whole(text)

    monkeypatch.setattr(json, "loads", counted)
    assert [row["step"] for row in results.newest(run, 20)] == list(range(281, 301))
    assert len(parsed) == 21, "those that are wanted, and the one that is being written"
