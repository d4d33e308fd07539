"""The loss scale of fp16 in real runs: steps that are skipped, and the scale in checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.job import events
from tests.support import training

FP16 = ("parallel=fsdp", "precision=fp16", "train.steps=3")
TOO_LARGE = 2.0**36
"""A scale with which gradients are infinite, also halved a few times."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose scale is too large at first, and one that goes on from its checkpoint."""
    folder = tmp_path_factory.mktemp("fp16")
    first = (*FP16, f"precision.initial_loss_scale={TOO_LARGE}", "save.every=2")
    training.train_all(
        folder, {"first": first, "second": (*FP16, f"save.load={folder}/first/checkpoints/step-00000002")}, ranks=2
    )
    return folder


def test_steps_whose_gradients_overflow_are_skipped_by_all_ranks_and_said(runs: Path) -> None:
    skipped = [line for line in events.read(runs / "first") if line["kind"] == "skipped"]
    assert [line["step"] for line in skipped] == [1, 2, 3]
    assert skipped[0]["text"] == ("step 1 was skipped: gradients overflowed in fp16; the loss scale is now 3.43597e+10")
    lines = training.lines(runs / "first")
    assert [(line["loss_scale"], line["grad_norm"]) for line in lines] == [(TOO_LARGE / 2**n, None) for n in (1, 2, 3)]


def test_a_resumed_run_goes_on_with_the_scale_of_the_checkpoint(runs: Path) -> None:
    assert training.lines(runs / "second")[0]["loss_scale"] == TOO_LARGE / 8
