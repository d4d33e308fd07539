"""`launch resume RUN KEY=VALUE` and `save.load=RUN`: what goes on, what stays the same, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import resuming, training
from tests.support.slurm_runs import launch

BATCH = 12
"""Sequences of one step: 4, 2, 3 and 1 ranks share them out evenly."""

BASE = (
    *training.SMALL,
    "model.num_hidden_layers=1",
    f"train.global_batch_size={BATCH}",
    "train.micro_batch_size=3",
    "optimizer.schedule=constant",
    "save.last=true",
    "hardware=cpu",
)
WAYS = {
    "fsdp": ("parallel=fsdp",),
    "ddp": ("parallel=ddp",),
    "zero": ("parallel=zero1",),
    "megatron": ("backend=megatron", "parallel=ddp"),
}
TOLERANCE = 2e-5
"""Relative: fp32 sums in another order, and in another engine."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run that nobody interrupts."""
    words = (*BASE, "parallel=ddp", "train.steps=8")
    return training.train_all(tmp_path_factory.mktemp("reference"), {"whole": words}, ranks=1)["whole"]


@pytest.mark.parametrize("way", WAYS)
def test_on_four_two_three_and_one_ranks_a_run_trains_what_it_would_have_on_one(
    way: str, reference: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    resuming.by_agents(monkeypatch)
    answer = launch(*BASE, *WAYS[way], "run.name=a", "cluster.gpus_per_node=4", "train.steps=2")
    assert answer.status == 0, answer.err
    for steps, ranks in ((4, 2), (6, 3), (8, 1)):
        answer = launch("resume", "a", f"cluster.gpus_per_node={ranks}", f"train.steps={steps}")
        assert answer.status == 0, answer.err
    assert training.losses(tmp_path / "runs" / "a") == pytest.approx(reference, rel=TOLERANCE)
    assert [line["step"] for line in training.lines(tmp_path / "runs" / "a")] == list(range(1, 9))
    made = json.loads((tmp_path / "runs" / "a" / "changes.json").read_text())["changes"]
    assert [(entry["step"], entry["before"]) for entry in made] == [
        (2, "settings/1"),
        (4, "settings/2"),
        (6, "settings/3"),
    ]
