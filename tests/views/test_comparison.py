"""`launch compare`: runs side by side, whatever they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.views import comparison
from tests.support.recorded_runs import line, predicted, recorded, swept
from tests.support.slurm_runs import launch

SMALL = ("train.sequence_length=32", "train.global_batch_size=8", "train.micro_batch_size=4", "train.steps=40")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)


def two(root: Path) -> tuple[Path, Path]:
    """A run, and one of twice the batch and another rate that has gone half as far."""
    steps = [line(step, 5 - step / 10) for step in range(1, 41)]
    a = recorded(root / "runs" / "a", *SMALL, steps=steps, now="finished")
    large = ("train.global_batch_size=16", "optimizer.lr=1e-3")
    steps = [line(step, 5 - step / 8, 150.0) for step in range(1, 21)]
    return a, recorded(root / "runs" / "b", *SMALL[:1], *large, *SMALL[2:], steps=steps, now="running")


def test_losses_are_compared_at_equal_steps_and_at_equal_tokens(tmp_path: Path) -> None:
    two(tmp_path)
    document = launch("compare", "a", "b", "--json").json["compare"]
    assert document["differences"] == [
        {"path": "optimizer.lr", "values": [0.0003, 0.001]},
        {"path": "train.global_batch_size", "values": [8, 16]},
    ]
    assert document["at_steps"][-1] == {"step": 20, "losses": [3.0, 2.5]}
    assert document["at_tokens"][-1] == {"tokens": 40 * 8 * 32, "losses": [1.0, 2.5]}
    assert all(row["tokens"] % 512 == 0 for row in document["at_tokens"]), "both have a step that ends there"
    first, second = document["runs"]
    expected = {
        "state": "finished",
        "steps": 40,
        "tokens": 40 * 8 * 32,
        "peak_bytes": None,
        "predicted_bytes": 3 * 2**20,
    }
    assert {key: first[key] for key in expected} == expected
    assert "tokens/s a GPU predicted" not in launch("compare", "a", "b").out, "the plans predict none"
    assert (first["tokens_per_second_per_gpu"], second["tokens_per_second_per_gpu"]) == (50.0, 75.0)
    assert first["loss"] == pytest.approx(5 - 3.85, abs=0.01)
    assert (document["loss_is"], first["settings"]["optimizer.lr"]) == ("training", 0.0003)
    said = launch("compare", "a", "b").out.splitlines()
    assert said[:4] == [
        "not ranked by loss: a step has 256 to 512 tokens; train.eval_every gives them",
        "  losses on the same held-out samples",
        "fastest: b, 75 tokens/s a GPU",
        "b is running: its figures so far",
    ]
    rows = {row[:30].rstrip(): row[30:].split() for row in said}
    assert rows["optimizer.lr"] == ["0.0003", "0.001"]
    assert rows["step 20"] == ["3.0000", "2.5000"]


def test_the_speed_of_a_plan_that_predicts_one_stands_above_the_measured_one(tmp_path: Path) -> None:
    steps = [line(step, 1.0, 100.0 if step != 9 else 1.0) for step in range(1, 11)]
    recorded(tmp_path / "runs" / "a", *SMALL, steps=steps, now="finished", speed=predicted(55.0))
    recorded(tmp_path / "runs" / "b", *SMALL, steps=steps, now="finished")
    rows = {row[:26].rstrip(): row[26:].split() for row in launch("compare", "a", "b").out.splitlines()}
    assert rows["tokens/s a GPU predicted"] == ["55", "-"]
    assert rows["tokens/s a GPU measured"] == ["50", "50"], "one slow step is no speed"
    runs = launch("compare", "a", "b", "--json").json["compare"]["runs"]
    assert [run["predicted_tokens_per_second_per_gpu"] for run in runs] == [55.0, None]


def test_a_run_that_went_on_with_other_gpus_is_measured_by_the_lines_of_its_newest_plan(tmp_path: Path) -> None:
    before = [{**line(step, 1.0, 400.0), "predicted_tokens_per_second": 390.0} for step in range(1, 30)]
    after = [{**line(step, 1.0, 100.0), "predicted_tokens_per_second": 110.0} for step in range(30, 34)]
    recorded(tmp_path / "runs" / "a", *SMALL, steps=[*before, *after], now="finished", speed=predicted(55.0))
    recorded(tmp_path / "runs" / "b", *SMALL, steps=after, now="finished")
    runs = launch("compare", "a", "b", "--json").json["compare"]["runs"]
    assert [run["tokens_per_second_per_gpu"] for run in runs] == [50.0, 50.0]


def test_runs_of_any_kind_and_state_are_compared_by_what_they_have(tmp_path: Path) -> None:
    two(tmp_path)
    recorded(tmp_path / "runs" / "waits", "model=125m", *SMALL, now="failed", reason="no such node")
    recorded(tmp_path / "runs" / "own", "script=train.py", steps=[{"step": 5, "loss": 4.0}], now="finished")
    (recorded(tmp_path / "runs" / "old") / "spec.json").write_text('{"schema": 0, "model": {"name": "x"}}')
    said = launch("compare", "a", "waits", "own", "old")
    assert said.status == 0, said.err
    assert "not ranked by loss: their data or sequence lengths differ" in said.out
    assert "waits has no loss in its metrics; it is failed: no such node" in said.out
    assert "old has no loss in its metrics; it is prepared" in said.out
    assert "own: tokens per step are unknown for a script" in said.out
    assert "more of model" in said.out, "what follows from another model is counted"
    assert launch("compare", "waits", "old", "--json").json["compare"]["at_steps"] == []


def test_held_out_losses_are_compared_where_all_have_some(tmp_path: Path) -> None:
    for name, loss in (("a", 3.0), ("b", 2.0)):
        steps = [line(1, 9.0), {**line(2, 8.0), "eval_loss": loss}, line(3, 7.0)]
        recorded(tmp_path / "runs" / name, steps=steps, now="finished")
    found = comparison.compare([tmp_path / "runs" / "a", tmp_path / "runs" / "b"])
    assert [found.loss(side) for side in found.sides] == [3.0, 2.0]
    assert (found.differences, found.at_tokens) == ({}, {}), "a step has as many tokens in both"
    assert "the settings are the same" in launch("compare", "a", "b").out


def test_a_figure_shows_the_losses_and_a_sweep_stands_for_its_runs(tmp_path: Path) -> None:
    swept(tmp_path / "runs" / "s", {"1e-3": 2.0, "1e-4": 3.0})
    said = launch("compare", "s", "--plot", "losses.html")
    assert (said.status, said.err) == (0, "launch: the figure is in losses.html\n")
    page = (tmp_path / "losses.html").read_text()
    assert "<title>s/000 and s/001</title>" in page
    assert '"run":"s/001"' in page
    assert launch("compare", "s", "--plot", "losses.txt").status == 2
    refused = launch("compare", "s/000")
    assert (refused.status, refused.err.splitlines()[0]) == (
        2,
        "error: RUN=s/000: a comparison needs at least two runs",
    )
