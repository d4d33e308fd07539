"""Ends that are none of memory: cause, evidence with file and line, and lines to paste."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.base.process import Process
from launcher.job import events
from launcher.rundir import health, state
from launcher.why.answer import Answer, Cause
from launcher.why.explain import explain
from tests.support.ended_runs import failed, write_error
from tests.support.recorded_runs import line

TRACEBACK = (
    'Traceback (most recent call last):\n  File "/home/me/train.py", line 31, in main\n    x()\n'
    '  File "/venv/lib/python3.12/site-packages/torch/nn.py", line 7, in x\n    y()\nValueError: no'
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def why(run: Path) -> Answer:
    return explain(run, run.parent.parent)


def commands(found: Answer) -> list[str]:
    return [way.command for way in found.ways]


def test_an_error_of_the_program_names_the_users_own_line(folder: Path) -> None:
    run = failed(folder / "runs" / "a", reason="rank 1: ValueError: no (nn.py:7 in x)", steps=[line(4, 5.0)])
    write_error(run, "ValueError: no", kind="ValueError", rank=1, traceback=TRACEBACK)
    found = why(run)
    assert (found.cause, found.where.rank, found.where.step) == ("error", 1, 5)
    assert (found.evidence[0].file, found.evidence[0].line) == ("/home/me/train.py", 31)
    assert found.evidence[0].text == "ValueError: no in main"
    assert found.evidence[1].file == "logs/error.rank1.json"
    assert commands(found) == ["launch logs a", "launch resume a"]


def test_an_error_of_a_script_names_its_line_from_the_log_of_the_rank_that_failed_first(folder: Path) -> None:
    run = failed(folder / "runs" / "a", reason="ValueError: no (nn.py:7 in x) (exit status 1; ...)")
    log = run / "logs" / "ranks" / "1_x" / "attempt_0" / "1"
    log.mkdir(parents=True)
    (log / "stderr.log").write_text(f"a warning\n{TRACEBACK}\n")
    report = "Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 9)\n"
    (run / "logs" / "node.err").write_text(report)
    found = why(run)
    assert [(each.file, each.line) for each in found.evidence] == [
        ("/home/me/train.py", 31),
        ("logs/ranks/1_x/attempt_0/1/stderr.log", 7),
    ]


def test_a_killed_rank_has_the_line_of_torchruns_report(folder: Path) -> None:
    reason = "rank 1 was ended by SIGKILL: ..."
    run = failed(folder / "runs" / "a", "data.workers=2", reason=reason, cause="rank_killed")
    report = "Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 9)\n"
    (run / "logs" / "node.err").write_text(report)
    found = why(run)
    assert (found.cause, found.where.rank) == ("rank_killed", 1)
    assert (found.evidence[0].file, found.evidence[0].line) == ("logs/node.err", 4)
    assert commands(found) == ["launch resume a", "launch resume a data.workers=0"]


def test_a_hang_names_the_rank_that_the_others_wait_for_and_the_stacks(folder: Path) -> None:
    run = failed(folder / "runs" / "a", reason="")
    row = {"rank": 0, "host": "gpu07", "step": 6, "phase": "forward", "seconds": 60.0, "usual": 0.2, "state": None}
    row |= {"source": "", "stack": [], "threads": "", "collectives": None}
    behind = {**row, "rank": 1, "step": 5, "phase": "data", "host": "gpu08"}
    (run / "logs" / "hangs").mkdir()
    text = health.say_hang(run, 6, [row, behind])
    health.note_hang(run, restart=False, attempt=None, text=text)
    state.put(run, "failed", reason=text, cause="hang")
    found = why(run)
    assert found.cause == "hang"
    assert (found.where.rank, found.where.phase, found.where.step, found.where.node) == (1, "data", 5, "gpu08")
    assert [each.file for each in found.evidence] == ["events.jsonl", "logs/hung.json", "logs/hangs/step-6.txt"]
    assert commands(found)[0] == "launch logs a"
    assert "launch resume a train.on_hang=restart" in commands(found)


def test_a_loss_that_is_no_number_has_the_last_one_before_and_calmer_settings(folder: Path) -> None:
    said = "the loss of step 9 is nan: training has diverged; try a lower optimizer.lr"
    run = failed(
        folder / "runs" / "a", "optimizer.clip=0", reason=f"rank 0: {said}", cause="nan", steps=[line(8, 5.25)]
    )
    write_error(run, said, kind="TrainingError")
    found = why(run)
    assert (found.cause, found.where.step) == ("nan", 9)
    assert found.said[1].startswith("the last loss before that was 5.25 in step 8")
    assert ("metrics.jsonl", 1) in [(each.file, each.line) for each in found.evidence]
    assert "launch resume a optimizer.clip=1.0" in commands(found)
    assert "launch resume a" in commands(found)


@pytest.mark.parametrize(
    ("update", "said"),
    [
        ({}, ""),
        (
            {"grad_norm": None, "learning_rate": 961.9397662556433},
            ", with a gradient norm that was already NaN or infinite and a learning rate of 962",
        ),
        (
            {"grad_norm": 2.34567, "learning_rate": 0.0003},
            ", with a gradient norm of 2.35 and a learning rate of 0.0003",
        ),
    ],
)
def test_the_update_before_a_loss_that_is_no_number_is_told_as_far_as_it_is_known(
    folder: Path, update: dict[str, float | None], said: str
) -> None:
    run = failed(folder / "runs" / "a", reason="rank 0: the loss of step 3 is nan", cause="nan")
    (run / "metrics.jsonl").write_text(json.dumps({"step": 2, "loss": 5.545178, **update}) + "\n")
    assert why(run).said[1] == f"the last loss before that was 5.545 in step 2{said}"


def test_only_the_kernels_word_makes_it_the_kernels_kill(folder: Path) -> None:
    reason = "rank 1: out of host memory in forward of step 3, layer 2"
    own = why(failed(folder / "runs" / "a", reason=reason, cause="out_of_memory", rank=1))
    assert (own.cause, own.said[0]) == ("out_of_memory", reason)
    reason = "rank 1 was ended by the kernel: out of host memory"
    killed = why(failed(folder / "runs" / "b", reason=reason, cause="out_of_memory", rank=1))
    assert killed.said[0].startswith("the kernel killed rank 1 for lack of host memory")


@pytest.mark.parametrize(
    ("reason", "cause", "command"),
    [
        ("its time limit came near after step 7; not requeued: cluster.requeues=0", "time_limit", "launch resume a"),
        (
            "preempted after step 7; not requeued: cluster.requeues=0",
            "preempted",
            "launch resume a cluster.requeues=10",
        ),
    ],
)
def test_limits_and_preemptions_say_what_lets_the_run_go_on(
    folder: Path, reason: str, cause: Cause, command: str
) -> None:
    found = why(failed(folder / "runs" / "a", "cluster.requeues=0", reason=reason, cause=cause))
    assert (found.cause, found.where.step) == (cause, 7)
    assert command in commands(found)


def test_a_longer_limit_is_offered_where_there_is_one(folder: Path) -> None:
    reason = "its time limit ended it before it saved"
    run = failed(folder / "runs" / "a", "cluster.time_limit_min=30", reason=reason, cause="time_limit")
    assert "launch resume a cluster.time_limit_min=60" in commands(why(run))


def test_a_run_that_was_put_back_needs_nothing(folder: Path) -> None:
    run = failed(folder / "runs" / "a")
    state.put(run, "requeued", reason="preempted after step 7", cause="preempted")
    found = why(run)
    assert (found.cause, found.ways) == ("preempted", [])
    assert found.said[1].startswith("it waits in the queue and will continue by itself")


def test_a_full_disk_is_told_with_what_checkpoints_take(folder: Path) -> None:
    said = "OSError: [Errno 28] No space left on device: '/data/runs/a/checkpoints/step-4.partial/x'"
    words = ("save.keep=5", "save.every=2")
    run = failed(folder / "runs" / "a", *words, reason=f"rank 0: {said}", cause="disk", steps=[line(3, 5.0)])
    (run / "checkpoints" / "step-00000002").mkdir()
    (run / "checkpoints" / "step-00000002" / "model.pt").write_bytes(bytes(2**20))
    write_error(run, said, kind="OSError")
    found = why(run)
    assert (found.cause, found.pile) == ("disk", "checkpoints")
    assert "/data/runs/a/checkpoints/step-4.partial/x could not be written by rank 0" in found.said[0]
    assert found.piles[0].measured_bytes == 2**20
    assert commands(found)[-1] == "launch resume a"


def test_a_run_whose_keeper_is_gone_was_killed(folder: Path) -> None:
    run = failed(folder / "runs" / "a")
    state.put(run, "running", keeper=replace(Process.here(), pid=2**30).as_dict())
    found = why(run)
    assert (found.state, found.cause) == ("lost", "rank_killed")
    assert found.said[0] == "the process that managed the job on this machine is gone"


def test_the_causes_that_a_job_keeps_are_those_of_the_answer() -> None:
    from typing import get_args

    assert set(get_args(events.FailureKind.__value__)) <= set(get_args(Cause.__value__))


@pytest.mark.parametrize("cause", [None, "of tomorrow"])
def test_a_cause_that_is_not_known_is_read_from_the_files(folder: Path, cause: str | None) -> None:
    run = failed(folder / "runs" / "a", reason="rank 1: the disk is full", cause=cause)
    assert why(run).cause == "error"
    write_error(run, "the disk is full", kind="TrainingError", rank=1, cause="disk")
    assert (why(run).cause, why(run).where.rank) == ("disk", 1)
