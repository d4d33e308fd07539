"""`launch status`: where a run stands, words that find it from any folder, and tables in order."""

from __future__ import annotations

import io
import json
import signal
import sys
from pathlib import Path

import pytest

from launcher.commands import cancel
from tests.support.recorded_runs import line, recorded, swept
from tests.support.slurm_runs import launch


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, with no runs but those of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")


def test_a_run_that_trains_shows_its_step_loss_speed_time_left_and_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [line(step, 10 - step) for step in range(1, 5)]
    run = recorded(tmp_path / "a" / "runs" / "mine", "train.steps=100", steps=steps, now="running")
    (run / "checkpoints" / "step-00000003").mkdir()
    (run / "checkpoints" / "step-00000003" / "state.json").write_text("{}")
    recorded(tmp_path / "b" / "runs" / "other", now="failed", reason="rank 1: no")
    said = launch("status")
    assert said.err == "launch: no runs below runs/; these were recorded in other folders\n"
    assert [row.split() for row in said.out.splitlines()] == [
        ["run", "state", "step", "last", "loss", "tokens/s", "left", "saved", "job"],
        ["in", f"{tmp_path}/b/runs:"],
        ["other", "failed", "-", "-", "-", "-", "-", "-"],
        ["rank", "1:", "no"],
        ["in", f"{tmp_path}/a/runs:"],
        ["mine", "running", "4/100", "6.0000", "100", "3", "min", "3", "-"],
        ["why:", "launch", "why", "other"],
    ]
    [row] = launch("status", "mine", "--json").json["runs"]
    assert row == {
        "id": "mine",
        "directory": str(run),
        "state": "running",
        "job_id": None,
        "step": 4,
        "reason": None,
        "steps": 100,
        "loss": 6.0,
        "tokens_per_second": 100.0,
        "seconds_left": 192.0,
        "left_is": "measured",
        "checkpoint_step": 3,
        "evaluation": None,
        "queue": None,
        "recent": [{"step": step, "loss": 10.0 - step, "tokens_per_second": 100.0} for step in (1, 2, 3, 4)],
        "predicted_tokens_per_second": None,
        "memory": None,
        "slowest": None,
    }
    monkeypatch.chdir(tmp_path / "a")
    assert launch("status").out.splitlines()[1].startswith("mine  running"), "here the folder need not be named"


def test_a_word_that_several_runs_answer_to_is_refused_with_the_words_that_tell_them_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[Path] = []

    def stop(runs: list[Path], how: signal.Signals) -> list[bool]:
        stopped.extend(runs)
        return [True] * len(runs)

    monkeypatch.setattr(cancel, "stop_all", stop)
    one = swept(tmp_path / "p" / "runs" / "one", {"1e-3": 2.0, "1e-4": 3.0})
    two = swept(tmp_path / "q" / "runs" / "two", {"1e-3": 2.0})
    for verb in ("cancel", "status", "logs", "resume"):
        said = launch(verb, "000", "--json")
        assert said.status == 2
        [error] = said.json["errors"]
        assert (error["path"], error["found"]) == ("RUN", "000")
        assert error["rule"] == "2 runs match this name, and launch does not guess"
        assert error["way_out"] == [str(one / "000"), str(two / "000")]
    assert stopped == []
    for word in ("one/000", str(one / "000")):
        assert launch("cancel", word).status == 0
        assert stopped.pop() == one / "000"
    assert launch("cancel", "001").status == 0
    assert stopped.pop() == one / "001", "only one sweep has that point"
    assert launch("cancel", "one").status == 0
    assert stopped == [one / "000", one / "001"]
    monkeypatch.chdir(tmp_path / "q")
    assert launch("status", "two/000", "--json").json["runs"][0]["directory"] == str(two / "000")
    assert launch("status", "000").status == 2, "a point is no name, wherever its sweep lies"
    assert launch("status", "nothing").status == 2


def test_a_person_at_a_terminal_is_asked_which_run_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for place in ("p", "q"):
        recorded(tmp_path / place / "runs" / "same", now="finished")
    said = Terminal()
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr("tests.support.slurm_runs.io.StringIO", Terminal)
    monkeypatch.setattr(sys, "stdin", Terminal("2\n"))
    answer = launch("logs", "same")
    assert answer.err.splitlines()[:3] == [
        "launch: 2 runs match same:",
        f"  1  {tmp_path}/p/runs/same  (finished)",
        f"  2  {tmp_path}/q/runs/same  (finished)",
    ]
    assert "same is finished" in answer.out + answer.err
    monkeypatch.setattr(sys, "stdin", Terminal("\n"))
    assert launch("cancel", "same").status == 2


def test_an_array_is_found_by_its_id_and_its_tasks_by_theirs(tmp_path: Path) -> None:
    sweep = swept(tmp_path / "p" / "runs" / "s", {"1e-3": 2.0, "1e-4": 3.0, "1e-5": 4.0}, jobs=("7_0", "7_1", "8"))
    found = {word: [row["id"] for row in launch("status", word, "--json").json["runs"]] for word in ("7", "7_1", "8")}
    assert found == {"7": ["s/000", "s/001"], "7_1": ["s/001"], "8": ["s/002"]}
    recorded(tmp_path / "q" / "runs" / "x", now="finished", job="8")
    assert launch("status", "8", "--json").json["errors"][0]["way_out"][0] == str(sweep / "002"), "of two clusters"


def test_a_sweeps_table_is_put_in_order_and_names_its_best_point_with_its_line(tmp_path: Path) -> None:
    swept(tmp_path / "p" / "runs" / "s", {"1e-3": 2.5, "9": None, "2e-4": 1.5, "1e-2": 4.0})
    assert launch("status", "s", "--sort", "loss").out.endswith(
        "\nlowest loss (mean of the last tenth of the logged steps): 002, 1.5000\n"
        "launch model=tiny cluster.gpus_per_node=2 optimizer.lr=2e-4\n"
    )

    def order(column: str) -> list[str]:
        return [row["point"] for row in launch("status", "s", f"--sort={column}", "--json").json["runs"]]

    assert order("loss") == ["002", "000", "003", "001"], "a point without a loss comes last"
    assert order("-loss") == ["003", "000", "002", "001"]
    assert order("optimizer.lr") == ["002", "000", "003", "001"]
    best = launch("status", "s", "--json").json["best"]
    assert (best["point"], best["loss"], best["overrides"][-1]) == ("002", 1.5, "optimizer.lr=2e-4")
    said = launch("status", "s", "--sort", "los")
    assert (said.status, said.err.splitlines()[:2]) == (2, ["error: --sort=los: no such column", "  try  --sort loss"])
    path = tmp_path / "p" / "runs" / "s" / "000" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "state": "cancelled"}))
    assert (
        "\nlowest loss (mean of the last tenth of the logged steps) so far (1 not finished): 002"
        in launch("status", "s").out
    )


def test_runs_are_put_in_order_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, speed in (("slow", 10.0), ("fast", 1000.0), ("none", None)):
        recorded(tmp_path / "p" / "runs" / name, steps=[line(1, 1.0, speed)] if speed else (), now="finished")
    monkeypatch.chdir(tmp_path / "p")
    rows = launch("status", "--sort", "tokens/s").out.splitlines()
    assert [row.split()[0] for row in rows] == ["run", "fast", "slow", "none"]
