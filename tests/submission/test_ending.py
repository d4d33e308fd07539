"""How a job on Slurm is put back: with its nodes, or without one that has failed too often."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.base import files
from launcher.rundir import attempts, state
from launcher.slurm import jobs
from launcher.slurm.jobs import SlurmRefused
from launcher.submission import ending, node
from launcher.submission.processes import SlurmPlace

KILLED = "torchrun was ended by SIGKILL: the kernel may have been out of memory (on n1)"


def started(run: Path) -> Path:
    (run / "logs").mkdir(parents=True)
    (run / "spec.json").write_text(json.dumps({"cluster": {"requeues": 9}}))
    attempts.begin(run, "7_0")
    return run


def place(
    excluded: list[str], obstacle: str | None = None, refuse: Callable[[Sequence[str]], None] | None = None
) -> SlurmPlace:
    return SlurmPlace(
        job_id="7",
        number=0,
        attempt="7_0",
        told_to_save=threading.Event(),
        told_to_end=threading.Event(),
        requeue=lambda: None,
        seconds_left=lambda: None,
        without=lambda _: obstacle,
        exclude=refuse or excluded.extend,
        hosts=("n1",),
    )


def said(run: Path) -> str:
    content = files.read_json(run / "state.json") or {}
    assert content["state"] == "requeued"
    return str(content["reason"])


def test_a_node_that_fails_twice_is_excluded_from_the_requeue(tmp_path: Path) -> None:
    run, excluded = started(tmp_path / "a"), list[str]()
    assert ending.conclude(run, -9, place(excluded)) is None
    assert (said(run), excluded) == (KILLED, [])
    attempts.begin(run, "7_1")
    assert ending.conclude(run, -9, place(excluded)) is None
    assert (said(run), excluded) == (f"{KILLED}; n1 failed 2 times and is excluded from the requeue", ["n1"])


def test_a_node_that_cannot_be_left_out_is_named_with_the_reason(tmp_path: Path) -> None:
    run, excluded = started(tmp_path / "a"), list[str]()
    ending.conclude(run, -9, place(excluded))
    ending.conclude(run, -9, place(excluded, "partition main has 0 other nodes that are up, and the run needs 1"))
    expected = "cannot be excluded: partition main has 0 other nodes that are up, and the run needs 1"
    assert (said(run), excluded) == (f"{KILLED}; n1 failed 2 times, and {expected}", [])


def test_slurms_refusal_to_exclude_a_node_is_said(tmp_path: Path) -> None:
    def refuse(_: Sequence[str]) -> None:
        raise SlurmRefused("Access denied")

    run = started(tmp_path / "a")
    attempts.blame(run, "n1")
    ending.conclude(run, -9, place([], refuse=refuse))
    assert said(run).endswith("n1 failed 2 times and is excluded from the requeue, which Slurm refused: Access denied")


@pytest.mark.parametrize(
    ("end", "refused"),
    [
        ("exit 3", {"7": "scancel failed without a message (exit status 3)"}),
        ("exit 229", {}),  # ESLURM_ALREADY_DONE, 2021: the step has ended by then.
        ("echo 'scancel: error: no' >&2; exit 229", {"7": "scancel: error: no"}),
    ],
)
def test_a_stand_in_for_scancel_that_fails_without_a_word_is_named_but_where_the_step_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, refused: dict[str, str]
) -> None:
    (tmp_path / "scancel").write_text(f"#!/bin/sh\n{end}\n")
    (tmp_path / "scancel").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert jobs.cancel(["7"]) == refused


def test_a_broken_gpus_node_is_excluded_at_once(tmp_path: Path) -> None:
    run, excluded = started(tmp_path / "a"), list[str]()
    content = {"type": "NodeFault", "message": "rank 5 on n2 is slow", "traceback": "", "faulty_node": "n2"}
    (run / "logs" / "error.rank0.json").write_text(json.dumps(content))
    ending.conclude(run, 1, place(excluded))
    assert said(run) == "rank 5 on n2 is slow; n2 failed and is excluded from the requeue"
    assert excluded == ["n2"]


@pytest.mark.parametrize("before", [{}, {"failures": {"n2": 1}}], ids=["an old file", "a new one"])
def test_failures_are_counted_over_attempts_and_forgotten_when_someone_resumes(
    tmp_path: Path, before: dict[str, object]
) -> None:
    content = {"count": 1, "fruitless": 0, "checkpoint": 0, "allocation": "7_0", **before}
    (tmp_path / attempts.FILE).write_text(json.dumps(content))
    attempts.begin(tmp_path, "7_1")
    assert attempts.blame(tmp_path, "n2") == (2 if before else 1)
    attempts.forget(tmp_path)
    assert attempts.blame(tmp_path, "n2") == 1


@pytest.mark.parametrize("number", [0, 1])
def test_a_job_that_slurm_requeues_after_it_has_finished_trains_nothing_again(tmp_path: Path, number: int) -> None:
    run, trains = tmp_path / "a", "import pathlib; pathlib.Path('trained').touch()"
    run.mkdir()
    job = {"argv": ["python3", "-c", trains], "environment": {}, "nodes": 2, "working_directory": str(tmp_path)}
    (run / "job.json").write_text(json.dumps({"schema": 1, "worker_argv": [], "gpus_per_node": 1, **job}))
    state.put(run, "finished", job_id="7")
    before = (run / "state.json").read_bytes()
    node.run(run, place=replace(place([]), number=number, hosts=("n1", "n2")))
    assert (run / "state.json").read_bytes() == before
    assert not list(tmp_path.rglob("trained"))
