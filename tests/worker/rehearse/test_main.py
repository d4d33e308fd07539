"""``python -m launcher.worker.rehearse`` as its caller sees it."""

from __future__ import annotations

import json
from pathlib import Path

from launcher.job.memory import ran_out
from tests.support.rehearsing import document, rehearse
from tests.support.training import prepare


def test_a_rank_that_the_run_does_not_have_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    spec = prepare(tmp_path, "parallel=fsdp", ranks=2)
    found = document(tmp_path, 2, backend=spec.backend.name)
    assert found == {"schema": 1, "error": "the run has ranks 0 to 1, not rank 2: --rank 0"}


def test_later_steps_are_timed_and_an_evaluation_has_its_peak_where_the_run_evaluates(tmp_path: Path) -> None:
    spec = prepare(tmp_path, "parallel=fsdp", "train.eval_every=5", ranks=2)
    found = rehearse(tmp_path, (1,), backend=spec.backend.name, steps=4)[1]
    assert (found.rank, found.world, found.stage, found.layers, found.ran_out) == (1, 2, 0, 2, False)
    assert set(found.phases) == {"load", "forward", "backward", "optimizer", "evaluation"}
    assert [seconds > 0 for seconds in found.step_seconds] == [True, True]
    for peak in found.phases.values():
        assert peak.piles is not None
        assert sum(peak.piles.values()) == peak.allocated_bytes


def test_a_rank_beyond_its_budget_says_so_and_leaves_what_was_alive(tmp_path: Path) -> None:
    words = ("parallel=fsdp", "train.enforce_memory=true", "hardware.memory_bytes=1500000")
    spec = prepare(tmp_path, *words, ranks=2)
    found = rehearse(tmp_path, (0,), backend=spec.backend.name)[0]
    assert found.ran_out
    assert set(found.phases) == {"load"}
    told = ran_out(tmp_path)
    assert told is not None
    assert (told.kind, told.rank, told.step, told.capacity_bytes) == ("budget", 0, 1, 1_500_000)
    assert sum(told.piles.values()) == told.allocated_bytes
    assert told.snapshot is not None
    assert json.loads((tmp_path / told.snapshot).read_text())["allocations"]
