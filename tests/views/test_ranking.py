"""Losses are ranked where they mean the same: held out on equal data, or of training on equal data and batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.rundir import live, results, status
from launcher.rundir.results import Basis
from launcher.views import page, pairs
from launcher.views.runs import frame
from tests.support.recorded_runs import line, recorded
from tests.support.slurm_runs import launch

DATA = "their data or sequence lengths differ"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def basis(folder: Path, *runs: tuple[str, ...], held_out: float | None = None) -> Basis:
    extra = {} if held_out is None else {"eval_loss": held_out}
    steps = [line(1, 3.0), {**line(2, 2.0), **extra}]
    found = [recorded(folder / "runs" / str(number), *words, steps=steps) for number, words in enumerate(runs)]
    return results.ranking_basis(results.trained_on(run, results.steps(run)) for run in found)


@pytest.mark.parametrize(
    ("words", "training", "held_out"),
    [
        (("optimizer.lr=1e-2",), "training", "held_out"),
        (("train.seed=3", "data.workers=1"), "training", "held_out"),
        (("train.global_batch_size=16",), None, "held_out"),
        (("parallel=fsdp", "cluster.gpus_per_node=4"), None, "held_out"),
        (("train.sequence_length=64",), None, None),
        (("data.eval_fraction=0.3",), None, None),
    ],
)
def test_other_data_rank_nothing_and_another_batch_held_out_losses_alone(
    folder: Path, words: tuple[str, ...], training: str | None, held_out: str | None
) -> None:
    assert basis(folder / "a", (), words).kind == training
    assert basis(folder / "b", (), words, held_out=1.5).kind == held_out


def test_the_reason_is_said_in_place_of_a_best_point(folder: Path) -> None:
    assert basis(folder / "a", (), ("data.eval_fraction=0.3",)).why == DATA
    assert basis(folder / "b", (), ("train.global_batch_size=16",)).why.startswith("a step has 512 to 4,096 tokens; ")


def test_a_runs_end_its_page_and_a_comparison_say_one_loss_and_what_it_is(folder: Path) -> None:
    steps = [line(step, 5.0 if step < 37 else float(step - 36)) for step in range(1, 41)]
    run = recorded(folder / "runs" / "a", steps=steps, now="finished")
    recorded(folder / "runs" / "b", "optimizer.lr=1e-2", steps=[line(1, 9.0)], now="finished")
    said = "2.5000 (mean of the last 4 lines)"
    assert f"loss 5.0000 -> {said} in 40 steps" in pairs.summary_table(run)
    assert f", loss {said}" in page.of_run(run)
    compared = launch("compare", "a", "b").out
    assert "loss, mean of the last tenth of the logged steps" in compared
    assert "2.5000" in compared
    assert any(
        row.startswith("last loss 4.0000") for row in frame(status.read(run), live.of_files(status.read(run)), 80)
    )
    assert "last loss" in launch("status").out
