"""Lines of metrics, as rank 0 writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from launcher.worker import memory
from launcher.worker.engine import Context, StepResult
from launcher.worker.metrics import Metrics
from tests.support.helpers import make_spec
from tests.support.recorded_runs import predicted


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
    device = torch.device("cpu")
    context = Context(
        spec=make_spec("train.steps=9"),
        directory=tmp_path,
        rank=0,
        world=1,
        device=device,
        memory=memory.tracker(device),
    )
    metrics = Metrics(context, resumed_at=0)
    metrics.step(1, StepResult(loss=torch.tensor(2.0), grad_norm=torch.tensor(1.0), learning_rate=0.1))
    metrics.close()
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert line["tokens_per_second"] > 0
    assert line.get("predicted_tokens_per_second") == expected
    assert ("predicted_tokens_per_second" in line) == (expected is not None)
