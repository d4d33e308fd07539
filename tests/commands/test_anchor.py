"""``--anchor RUN``: a measured run of one node is the constant of runs that are like it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.base import machine
from launcher.estimate.speed import calibration
from launcher.estimate.speed.calibration import UNCALIBRATED
from launcher.estimate.speed.estimate import estimate
from launcher.preflight.assess import parts
from launcher.rundir import contents
from tests.support.helpers import CPU_HOST
from tests.support.recorded_runs import line, recorded
from tests.support.slurm_runs import launch

RUN = ("model=tiny", "parallel=fsdp", "hardware=h100_80g", "cluster.gpus_per_node=2")
SPEED: dict[str, Any] = {
    "tokens_per_second": 200.0, "tokens_per_second_per_gpu": 100.0, "low": 90.0, "high": 110.0, "step_seconds": 2.0,
    "constant": {"value": 0.8, "calibration": "another"}, "crowded": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(machine, "facts", lambda: CPU_HOST)


def measured_run(folder: Path, steps: int = 24) -> Path:
    lines = [line(step, 3.0, 180.0) for step in range(1, steps + 1)]
    return recorded(folder / "runs" / "one", *RUN[1:3], steps=lines, now="finished", speed=SPEED)


def speed_of(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = launch("check", *RUN, "--json", *words).json["speed"]
    return found


def test_a_run_on_more_nodes_is_predicted_by_one_node_whatever_calibration_was_shipped_with_it(tmp_path: Path) -> None:
    path = measured_run(tmp_path)
    spec = contents.spec_of(path)
    raw = estimate(spec, **parts(spec), measured=UNCALIBRATED)
    assert raw is not None
    own = speed_of("--anchor", "one")
    assert own["tokens_per_second_per_gpu"] == pytest.approx(90.0)
    nodes = ("cluster=slurm", "cluster.nodes=4")
    there = speed_of(*nodes, "--anchor", "one")["constant"]
    assert there["value"] == pytest.approx(90.0 / raw.tokens_per_second_per_gpu)
    assert (there["rows"], there["whose"], there["here"]) == (1, "one on 2 GPUs", True)
    bands = calibration.shipped()["anchored"]
    assert {"low": there["low"], "high": there["high"]} == bands["same"]
    other = speed_of(*nodes, "train.micro_batch_size=4", "--anchor", "one")["constant"]
    assert {"low": other["low"], "high": other["high"]} == bands["others"]
    assert bands["others"]["low"] < bands["same"]["low"] < 1 < bands["same"]["high"] < bands["others"]["high"]
    text = " ".join(launch("check", *RUN, *nodes, "--anchor", "one", "--speed").out.split())
    assert "measured / predicted speed of one on 2 GPUs (--anchor)" in text


def test_another_card_or_engine_keeps_the_shipped_constant(tmp_path: Path) -> None:
    measured_run(tmp_path)
    for word in ("hardware=a100_80g", "parallel=zero2"):
        assert speed_of(word, "--anchor", "one")["constant"] == speed_of(word)["constant"]


def test_a_plan_ranks_by_it(tmp_path: Path) -> None:
    measured_run(tmp_path)
    words = ("parallel.shard=true", "train.micro_batch_size=1", "checkpointing=none", "--no-native")
    found = launch("plan", *RUN, *words, "--json", "--anchor", "one").json["plan"]["layouts"]
    plain = launch("plan", *RUN, *words, "--json").json["plan"]["layouts"]
    assert found
    assert found[0]["speed"]["tokens_per_second"] < plain[0]["speed"]["tokens_per_second"] / 2


def test_too_few_steps_and_a_word_that_is_no_run_are_refused(tmp_path: Path) -> None:
    measured_run(tmp_path, steps=12)
    refused = launch("check", *RUN, "--anchor", "one")
    assert refused.status == 2
    said = "its speed cannot be an anchor: 6 steps were measured, and at least 10 are needed"
    assert said in " ".join(refused.err.split())
    assert "no such run" in launch("check", *RUN, "--anchor", "nowhere").err
