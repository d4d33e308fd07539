"""Slow ranks: who is one, and that two real ranks of which one works longer come to say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from launcher.job import events
from launcher.rundir import health
from launcher.worker import memory
from launcher.worker import watch as pace
from launcher.worker.beat import BlockTimer
from launcher.worker.engine import Context
from tests.support.helpers import make_spec


@pytest.mark.parametrize(
    ("words", "means", "found"),
    [
        ((), [1.0, 1.0, 1.0, 1.3], {3: 0.3}),
        ((), [1.0, 1.19], {}),
        ((), [1.0, 1.5], {1: 0.5}),
        (("parallel=pp", "parallel.pipeline=2"), [1.0, 1.0, 2.0, 2.0], {}),
        (("parallel=pp", "parallel.pipeline=2"), [1.0, 1.3, 2.0, 2.0], {1: 0.3}),
        ((), [0.0, 0.0], {}),
    ],
)
def test_a_rank_is_slow_beside_those_of_its_stage(
    words: tuple[str, ...], means: list[float], found: dict[int, float]
) -> None:
    assert pace.slow(make_spec(*words, f"cluster.gpus_per_node={len(means)}"), means) == pytest.approx(found)


def test_the_clock_takes_the_training_passes_of_blocks() -> None:
    clock, block = BlockTimer(on=True), nn.Linear(4, 4)
    clock.follow([block], torch.device("cpu"))
    block(torch.ones(2, 4))
    assert clock.take_seconds() > 0
    with torch.no_grad():
        block(torch.ones(2, 4))
    assert clock.take_seconds() == 0


class Gathered(pace.SlowRankDetector):
    """Rank 0 of two, of which the other is as slow as the test says."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._hosts = ["a", "b"]

    def tell(self, step: int, times: list[float]) -> None:
        self._note(step, times)


def test_a_rank_that_is_slow_for_fifty_steps_is_named_with_its_node_until_it_no_longer_is(tmp_path: Path) -> None:
    context = Context(
        spec=make_spec("cluster.gpus_per_node=2"),
        directory=tmp_path,
        rank=0,
        world=1,
        device=torch.device("cpu"),
        memory=memory.tracker(torch.device("cpu")),
    )
    found = Gathered(context)
    for step in range(10, 50, 10):
        found.tell(step, [0.1, 0.13])
    assert events.read(tmp_path) == []
    for step in range(50, 80, 10):
        found.tell(step, [0.1, 0.13])
    took = "over 50 steps its own work took 30% longer than the median of the ranks in its pipeline stage"
    said = f"rank 1 on b is slow: {took}"
    assert [(line["step"], line["text"]) for line in events.read(tmp_path)] == [(50, said)]
    assert health.beside(tmp_path, "running", None) == said
    for step in range(80, 130, 10):
        found.tell(step, [0.1, 0.1])
    assert health.beside(tmp_path, "running", None) is None
    lines: list[dict[str, Any]] = [json.loads(line) for line in (tmp_path / pace.FILE).read_text().splitlines()]
    assert lines[0] == {"step": 10, "seconds": [0.1, 0.13]}
