"""Many points in one go: the same answers in order whoever gives them, fast, and in memory that does not grow."""

from __future__ import annotations

import json
import time
from itertools import islice
from pathlib import Path

from benchmarks.points import measured, points
from launcher import machine
from launcher.commands import _points as command
from launcher.config.catalog import Catalog
from tests.support.slurm_runs import launch

BAR = 100
"""Points a second that a machine must answer on which the loop below takes its usual time."""

USUAL_S = 0.0045


def loop() -> float:
    """Seconds of a fixed piece of Python: how fast this machine is now, with what else runs on it."""
    start, total = time.perf_counter(), 0
    for number in range(100_000):
        total += number * number
    return time.perf_counter() - start


def test_points_are_answered_fast_and_in_memory_that_does_not_grow(tmp_path: Path) -> None:
    few = measured(150, tmp_path)
    before = sorted(loop() for _ in range(20))[10]
    many = measured(450, tmp_path)
    after = sorted(loop() for _ in range(20))[10]
    assert {"fits", "does_not_fit", "invalid"} <= set(many["verdicts"])
    assert many["peak_memory_bytes"] - few["peak_memory_bytes"] < 16 * 2**20
    assert many["points_per_second"] * max(before, after, USUAL_S) / USUAL_S > BAR


def test_processes_give_the_answers_of_one_in_order(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    path.write_text("\n".join(islice(points(seed=1), 50)) + "\nno point\n\n")
    answers = list(command.answers(path))
    assert [json.loads(text)["id"] for _, text in answers] == [*range(50), None]
    facts, catalog = machine.facts(), Catalog(folder=Path.cwd())
    lines = [(number, line) for number, line in enumerate(path.read_text().splitlines(), 1) if line]
    assert [verdict for verdict, _ in answers] == [verdict for verdict, _ in command._answered(lines, facts, catalog)]


def test_the_ways_out_of_a_point_are_the_single_changes_that_check_finds(tmp_path: Path) -> None:
    words = ["parallel=fsdp", "hardware=h100_80g", "cluster.gpus_per_node=8", "precision=bf16"]
    cases = (["model=7b", "train.micro_batch_size=8", *words], ["model=70b", *words])
    path = tmp_path / "points.jsonl"
    path.write_text("\n".join(json.dumps({"id": 0, "overrides": case}) for case in cases))
    single, double = (json.loads(text) for _, text in command.answers(path))
    alone = launch("check", "--json", *cases[0]).json["fixes"]
    assert len(alone) > 1
    assert single["fixes"] == alone
    assert double["verdict"] == "does_not_fit"
    assert double["fixes"] == []
    assert launch("check", "--json", *cases[1]).json["fixes"]
