"""Lines of metrics, as rank 0 writes them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from launcher.rundir import results
from launcher.worker import files, memory
from launcher.worker.engine import Context, StepResult
from launcher.worker.metrics import Metrics
from tests.support.helpers import make_spec
from tests.support.recorded_runs import predicted


def alone(folder: Path) -> Context:
    device = torch.device("cpu")
    return Context(
        spec=make_spec("train.steps=9"),
        directory=folder,
        rank=0,
        world=1,
        device=device,
        memory=memory.tracker(device),
    )


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({"speed": predicted(50.04)}, 100.1),
        ({"speed": None}, None),
        ({}, None),
        (None, None),
    ],
    ids=["a plan that was given a prediction", "of a CPU", "of an older version", "no plan"],
)
def test_a_line_has_the_speed_that_the_plan_predicts_beside_the_measured_one(
    tmp_path: Path, plan: object, expected: float | None
) -> None:
    if plan is not None:
        (tmp_path / "plan.json").write_text(json.dumps(plan))
    context = alone(tmp_path)
    metrics = Metrics(context, resumed_at=0)
    metrics.step(1, StepResult(loss=torch.tensor(2.0), grad_norm=torch.tensor(1.0), learning_rate=0.1))
    metrics.close()
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert line["tokens_per_second"] > 0
    assert line.get("predicted_tokens_per_second") == expected
    assert ("predicted_tokens_per_second" in line) == (expected is not None)


def test_a_line_says_that_its_step_was_followed_and_speeds_leave_it_out(tmp_path: Path) -> None:
    context = alone(tmp_path)
    metrics = Metrics(context, resumed_at=0)
    result = StepResult(loss=torch.tensor(2.0), grad_norm=torch.tensor(1.0), learning_rate=0.1)
    for step in range(1, 6):
        if step == 4:
            with context.memory.measuring("forward"):
                pass
        metrics.step(step, result)
    metrics.close()
    rows = results.steps(tmp_path)
    assert [row.get("followed", False) for row in rows] == [False, False, False, True, False]
    assert [row["step"] for row in results.second_half(rows)] == [3, 5]


@given(
    steps=st.lists(st.integers(1, 9), max_size=12).map(sorted),
    limit=st.integers(0, 10),
    width=st.sampled_from([1, 100, 70_000]),
    end=st.sampled_from(["", '{"step": 3', "\n"]),
)
def test_lines_behind_a_step_are_cut_from_the_end(steps: list[int], limit: int, width: int, end: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines.jsonl"
        lines = [json.dumps({"step": step, "text": "x" * width}) + "\n" for step in steps]
        path.write_text("".join(lines) + end)
        files.cut(path, limit)
        assert path.read_text() == "".join(line for line, step in zip(lines, steps, strict=True) if step <= limit)
