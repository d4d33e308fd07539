"""A finished run as a row: predicted by its plan, measured by its lines; nothing here is the run's fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.base import machine
from launcher.base.machine import Gpu, Machine
from launcher.estimate.speed import calibration
from launcher.job import events
from launcher.preflight.measured import file
from launcher.rundir import contents, measured_run, status
from tests.support.helpers import make_spec
from tests.support.measured_rows import users_own
from tests.support.recorded_runs import line, recorded

H100 = ("hardware=h100_80g", "parallel=fsdp")
SPEED: dict[str, Any] = {
    "tokens_per_second": 200.0,
    "tokens_per_second_per_gpu": 100.0,
    "low": 90.0,
    "high": 110.0,
    "step_seconds": 2.0,
    "constant": {"value": 0.8, "low": 0.9, "high": 1.1, "calibration": calibration.version()},
    "crowded": False,
}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    on(monkeypatch, "NVIDIA H100 80GB HBM3")


def on(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    gpus = tuple(Gpu(name=name, memory_bytes=1, reserved_bytes=None, compute_capability=9.0) for name in names)
    monkeypatch.setattr(machine, "facts", lambda: Machine(gpus=gpus, host_memory_bytes=1, disk_free_bytes=None, cpus=1))


def run(folder: Path, steps: int = 24, *, speed: Any = None, words: tuple[str, ...] = H100) -> Path:
    lines = [line(step, 3.0, 10.0 if step < 5 else 180.0) for step in range(1, steps + 1)]
    found = recorded(folder, *words, steps=lines, now="finished", speed=SPEED if speed is None else speed)
    ranks = [{"peak_allocated_bytes": size * 2**20, "peak_reserved_bytes": None} for size in (3, 4)]
    (found / contents.MEMORY).write_text(json.dumps({"ranks": ranks, "method": ""}))
    return found


def left_out(run: Path) -> str | None:
    return measured_run.row_of(run, contents.spec_of(run)).left_out


def test_a_finished_run_lands_with_its_prediction_and_what_was_measured(tmp_path: Path) -> None:
    measured_run.enter(run(tmp_path / "a"))
    [row] = file.load(users_own()).rows
    assert (row.id, row.hardware, row.gpus, row.framework) == ("a", "h100_80g", 2, "PyTorch FSDP")
    assert row.spec_hash == make_spec("model=tiny", "cluster.gpus_per_node=2", *H100).hash
    assert (row.predicted.uncorrected, row.measured.tokens_per_second_per_gpu) == (125.0, 90.0)
    assert (row.measured.steps, row.left_out, row.ratio) == (12, None, 90 / 125)
    assert (row.measured.allocated_bytes, row.peak_ratio) == (4 * 2**20, 4 / 3)
    measured_run.enter(tmp_path / "a")
    assert len(file.load(users_own()).rows) == 1


def test_a_run_of_few_steps_on_a_full_or_another_card_is_there_and_in_no_constant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert left_out(run(tmp_path / "a", 18)) == "9 steps were measured, and at least 10 are needed"
    crowded = {**SPEED, "crowded": True}
    assert "nearly full" in str(left_out(run(tmp_path / "b", speed=crowded)))
    on(monkeypatch, "NVIDIA A100-SXM4-80GB")
    assert left_out(run(tmp_path / "c")) == "it was predicted for h100_80g and ran on NVIDIA A100-SXM4-80GB"


def test_a_run_of_which_nothing_was_predicted_lands_with_what_is_known(tmp_path: Path) -> None:
    cpu = run(tmp_path / "a", words=("hardware=cpu",), speed={})
    row = measured_run.row_of(cpu, contents.spec_of(cpu))
    assert (row.predicted.tokens_per_second_per_gpu, row.measured.tokens_per_second_per_gpu) == (None, 90.0)
    older = run(tmp_path / "b", speed={key: value for key, value in SPEED.items() if key != "constant"})
    row = measured_run.row_of(older, contents.spec_of(older))
    assert (row.predicted.tokens_per_second_per_gpu, row.ratio, row.calibration) == (100.0, None, None)


def test_layouts_differ_in_words_where_runs_differ_in_speed() -> None:
    words = [(), ("train.micro_batch_size=2",), ("parallel=ddp",), ("checkpointing=full",), ("train.compile=true",)]
    words += [("zero=2",), ("precision=fp32",), ("train.loss=chunked",), ("parallel=tp", "parallel.tensor=2")]
    layouts = [
        measured_run.layout_of(make_spec("model=tiny", *H100, "cluster.gpus_per_node=2", *each)) for each in words
    ]
    assert len(set(layouts)) == len(words)
    assert layouts[0] == "tiny fsdp bf16, data 2, sharded, zero 3, micro-batch 1 x 1 of 256"


def test_a_run_that_cannot_be_entered_has_ended_well_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = run(tmp_path / "a", words=(*H100, f"cluster.measurements={tmp_path}/none/m.jsonl"))
    measured_run.enter(shared)
    assert "launch: this run was not added to the measured runs: " in capsys.readouterr().err
    (shared / contents.SPEC).write_text("{")
    measured_run.enter(shared)
    assert "spec.json" in capsys.readouterr().err
    assert status.read(shared).state == "finished"
    assert not file.load(users_own()).rows


def test_a_script_of_the_user_s_own_is_no_measured_run(tmp_path: Path) -> None:
    measured_run.enter(run(tmp_path / "a", words=(*H100, "script=train.py")))
    assert not file.load(users_own()).rows


def saved(run: Path, *seconds: float, **also: Any) -> Path:
    for step, each in enumerate(seconds, 1):
        events.add(run, "save", "the checkpoint is complete", step=step, seconds=each, bytes=6 * 2**30, **also)
    return run


def test_a_run_tells_how_fast_its_checkpoints_were_written(tmp_path: Path) -> None:
    measured_run.enter(saved(run(tmp_path / "a"), 9.0, 3.0, 2.0))
    measured_run.enter(saved(run(tmp_path / "b"), 3.0, blocking_seconds=0.5))
    plain, background = (row.measured for row in file.load(users_own()).rows)
    assert (plain.checkpoint_bytes, plain.save_seconds, plain.blocking_seconds) == (6 * 2**30, 3.0, None)
    assert (background.save_seconds, background.blocking_seconds) == (3.0, 0.5)


def test_a_run_that_did_not_finish_tells_of_its_checkpoints_alone_and_replaces_nothing(tmp_path: Path) -> None:
    measured_run.enter(run(tmp_path / "none"), finished=False)
    assert file.load(users_own()).rows == ()
    killed = saved(run(tmp_path / "a"), 3.0)
    measured_run.enter(killed, finished=False)
    [row] = file.load(users_own()).rows
    assert (row.left_out, row.ratio, row.measured.save_seconds) == ("it did not finish", None, 3.0)
    measured_run.enter(killed)
    measured_run.enter(killed, finished=False)
    [row] = file.load(users_own()).rows
    assert row.left_out is None
