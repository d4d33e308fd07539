"""Losses that jump or fall no more: when, what follows, and the place in the data after a way back. Two real ranks."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from launcher.job import events
from launcher.rundir import health
from launcher.worker import TrainingError, memory, spikes
from launcher.worker.engine import Context, StepResult
from launcher.worker.metrics import Metrics, is_spent
from launcher.worker.spikes import SpikeDetector
from tests.support import training
from tests.support.helpers import make_spec

FALLING = [5.0 - 0.05 * step for step in range(40)]


def jumps(losses: list[float], last: float) -> str | None:
    judge = SpikeDetector(7.0)
    assert [judge.jump(step, loss) for step, loss in enumerate(losses, start=1)] == [None] * len(losses)
    return judge.jump(len(losses) + 1, last)


def test_a_loss_far_above_those_before_is_a_jump() -> None:
    said = "the loss of step 41 jumped to 12, 13.8 standard deviations above the mean of the 40 before (4.025)"
    assert jumps(FALLING, 12.0) == said
    assert jumps(FALLING, 6.0) is None
    assert jumps(FALLING, 0.1) is None, "a loss that falls is none"


def test_a_few_losses_judge_nothing_and_a_settled_loss_may_tremble() -> None:
    assert jumps(FALLING[:10], 12.0) is None
    assert jumps([2.0] * 40, 2.1) is None
    assert jumps([2.0] * 40, 2.2) is not None


def test_what_jumped_is_no_part_of_the_mean() -> None:
    judge = SpikeDetector(7.0)
    for step, loss in enumerate(FALLING, start=1):
        judge.jump(step, loss)
    assert judge.jump(41, 30.0) is not None
    assert judge.jump(42, 12.0) is not None


def test_a_run_goes_on_behind_the_samples_that_led_to_a_jump(tmp_path: Path) -> None:
    assert spikes.samples_behind(tmp_path, 20, 160) == 160
    spikes.record_rollback(tmp_path, spikes.Spike(27, math.nan, "no number"), to=20, samples=216)
    assert spikes.samples_behind(tmp_path, 20, 160) == 216
    assert spikes.samples_behind(tmp_path, 30, 296) == 296, "a later checkpoint knows of it"
    [line] = spikes.read(tmp_path)
    assert line == {"step": 27, "loss": None, "checkpoint_step": 20, "samples": 216}


def test_a_jump_leads_back_to_the_newest_checkpoint_and_on_in_the_data(tmp_path: Path) -> None:
    """Two tokens in turn are learnt at once; in the samples of step 21 there are others, which the run leaves out."""
    tokens = np.tile(np.array([7, 9], dtype=np.uint16), 32 * 8 * 25)
    tokens[32 * 8 * 20 + 1 : 32 * 8 * 21] = np.random.default_rng(1).integers(10, 250, 32 * 8 - 1)
    tokens.tofile(tmp_path / "tokens.bin")
    data = ["data=tokens", f"data.path={tmp_path}/tokens.bin", "data.shuffle=false", "train.steps=24", "save.every=5"]
    words = ["parallel=ddp", *data, "train.on_spike=rollback", "train.spike_deviations=2"]
    training.train_all(tmp_path, {"a": words}, ranks=2)
    run = tmp_path / "a"
    [back] = spikes.read(run)
    assert (back["step"], back["checkpoint_step"], back["samples"]) == (21, 20, 21 * 8)
    assert [line["step"] for line in training.lines(run)] == list(range(1, 25))
    assert training.losses(run)[20] < training.losses(run)[19], "step 21 was done again, on the samples of step 22"
    assert [line["kind"] for line in events.news(run)] == ["spike", "rollback"]
    saves = [line["step"] for line in events.read(run) if line["kind"] == "save"]
    assert saves == sorted(saves), "a milestone each, which nobody is told of"
    assert len(saves) > 1
    times = [json.loads(line) for line in (run / "rank_times.jsonl").read_text().splitlines()]
    assert [line["step"] for line in times] == [10, 20]
    assert all(len(line["seconds"]) == 2 and min(line["seconds"]) > 0 for line in times)
    said = health.beside(run, "finished", None) or ""
    assert said.startswith("the loss of step 21 jumped to ")
    assert said.endswith("; rolled back to the checkpoint of step 20, continuing with later data")


def test_a_jump_can_be_the_end(tmp_path: Path) -> None:
    with (
        judged(tmp_path, "train.on_spike=stop") as metrics,
        pytest.raises(TrainingError, match=r"train\.on_spike=stop: the last checkpoint is from before"),
    ):
        metrics.step(41, result(30.0))


def test_a_jump_is_said_once_and_the_run_goes_on(tmp_path: Path) -> None:
    with judged(tmp_path, "train.on_spike=report") as metrics:
        for step in (41, 42, 43):
            metrics.step(step, result(30.0))
        assert [line["kind"] for line in events.read(tmp_path)] == ["spike"]
        assert "jumped to 30" in (health.beside(tmp_path, "running", None) or "")
        with pytest.raises(TrainingError, match="the loss of step 44 is nan: training has diverged"):
            metrics.step(44, result(math.nan))


@contextlib.contextmanager
def judged(directory: Path, *words: str, resumed_at: int | None = None) -> Iterator[Metrics]:
    """The metrics of a run that has done 40 steps, or that goes on from a checkpoint."""
    context = Context(
        spec=make_spec("train.steps=99", *words),
        directory=directory,
        rank=0,
        world=1,
        device=torch.device("cpu"),
        memory=memory.tracker(torch.device("cpu")),
    )
    metrics = Metrics(context, resumed_at=resumed_at or 0)
    for step, loss in enumerate(FALLING if resumed_at is None else [], start=1):
        metrics.step(step, result(loss))
    yield metrics
    metrics.close()


def result(loss: float, norm: float | None = 1.0) -> StepResult:
    known = None if norm is None else torch.tensor(norm)
    return StepResult(loss=torch.tensor(loss), grad_norm=known, learning_rate=0.1)


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_ends_the_run_before_its_step_is_saved(norm: float, tmp_path: Path) -> None:
    with judged(tmp_path, "train.log_every=10", "save.every=3") as metrics:
        metrics.step(44, result(1.0, norm))  # Neither shown nor saved: nothing is read from the device.
        with pytest.raises(TrainingError, match=r"the gradient norm of step 45 is (nan|inf): training has diverged"):
            metrics.step(45, result(1.0, norm))
        with pytest.raises(TrainingError, match="the loss of step 48 is nan"):
            metrics.step(48, result(math.nan))
    with judged(tmp_path, "train.on_spike=rollback") as metrics, pytest.raises(spikes.Spike):
        metrics.step(44, result(1.0, norm))


def test_a_norm_that_is_unknown_or_of_a_step_that_fp16_skips_ends_nothing(tmp_path: Path) -> None:
    for words, norm in (((), None), (("precision=fp16",), math.inf)):
        with judged(tmp_path, *words) as metrics:
            metrics.step(44, result(1.0, norm))
        assert training.lines(tmp_path)[-1]["grad_norm"] is None


@pytest.mark.parametrize(
    ("patience", "losses", "spent"),
    [
        (2, [3.0, 3.0], False),
        (2, [3.0, 3.0, 3.0], True),
        (2, [3.0, 4.0, 2.0, 2.5], False),
        (None, [3.0] * 9, False),
        (1, [], False),
    ],
)
def test_patience_is_spent_by_evaluations_in_a_row_without_a_lower_loss(
    patience: int | None, losses: list[float], spent: bool
) -> None:
    assert is_spent(patience, losses) is spent


def test_evaluations_before_a_resume_count_and_those_that_are_done_again_do_not(tmp_path: Path) -> None:
    lines = [{"step": step, "loss": 1.0, "eval_loss": loss} for step, loss in ((10, 2.0), (20, 2.1), (30, 1.0))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with judged(tmp_path, "train.patience=2", "train.eval_every=10", resumed_at=20) as metrics:
        seen = [metrics.is_over]
        metrics.step(30, result(1.0), lambda: {"": torch.tensor(2.0)})
        seen.append(metrics.is_over)
    assert seen == [False, True]
    [event] = events.read(tmp_path)
    assert event["text"] == "train.patience=2 evaluations found no lower loss: the run ends"
    assert (event["kind"], event["step"], event["over"]) == ("patience", 30, True)


@pytest.mark.parametrize("engine", ["ddp", pytest.param("zero1", marks=pytest.mark.thorough)])
def test_a_run_whose_evaluations_get_no_better_ends_as_one_that_is_done(engine: str, tmp_path: Path) -> None:
    words = [f"parallel={engine}", "optimizer.lr=1e-30", "optimizer.weight_decay=0", "train.eval_every=2"]
    runs = {"ended": [*words, "train.patience=2", "save.last=true"], "whole": [*words, "train.steps=8"]}
    losses = training.train_all(tmp_path, runs, ranks=2)
    assert {name: len(found) for name, found in losses.items()} == {"ended": 6, "whole": 8}
    outcome = json.loads((tmp_path / "ended" / "logs" / "outcome.json").read_text())
    assert (outcome["state"], outcome["step"]) == ("finished", 6)
    assert len(list((tmp_path / "ended" / "checkpoints").glob("step*6"))) == 1
