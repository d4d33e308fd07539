"""The state of a run whose processes are gone, are strangers, or cannot be seen from here, as its user asks for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.base import files
from launcher.base.process import Process
from launcher.rundir import signature, state
from launcher.rundir.keeper import HEARTBEAT, begin_heartbeat
from launcher.slurm import jobs
from tests.support.recorded_runs import recorded
from tests.support.slurm_runs import Answer, launch


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return recorded(tmp_path / "runs" / "a")


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of the run's, and leads a process group."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def keeps(run: Path, keeper: object, **facts: Any) -> None:
    """Record a run on this machine with its keeper, as the node does."""
    as_record = keeper.as_dict() if isinstance(keeper, Process) else keeper
    files.write_atomically(run / state.SUBMISSION, {"kind": "local", "job_id": "7", "process": as_record})
    state.put(run, "running", keeper=as_record, **facts)


def row(answer: Answer) -> tuple[str, str | None]:
    [found] = answer.json["runs"]
    return found["state"], found["reason"]


ELSEWHERE = replace(Process.here(), boot="another", host="b7")
OTHERS = {"another host": ELSEWHERE, "another container": replace(Process.here(), namespace="pid:[1]", host="b7")}


@pytest.mark.parametrize("other", [{"start": 7}, {"boot": "another"}], ids=["pid reused", "rebooted"])
def test_cancel_spares_a_stranger_with_the_runs_pid(
    run: Path, stranger: subprocess.Popen[bytes], other: dict[str, Any]
) -> None:
    then = replace(Process.of(stranger.pid), **other)
    keeps(run, then, agent=then.as_dict())
    assert row(launch("status", "a", "--json"))[0] == "lost"
    answer = launch("cancel", "a")
    assert (answer.status, answer.err) == (0, "launch: a is not running\n")
    assert stranger.poll() is None


def test_a_run_whose_keeper_alone_is_gone_still_runs_and_can_be_ended(run: Path) -> None:
    environment = {**os.environ, "LAUNCH_RUN": str(run)}
    with subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True) as agent:
        keeps(run, replace(Process.here(), start=7), agent=Process.of(agent.pid).as_dict())
        now, reason = row(launch("status", "a", "--json"))
        assert (now, "its ranks still run: `launch cancel a` ends them" in str(reason)) == ("running", True)
        refused = launch("resume", "a")
        assert refused.status == 4
        launch("cancel", "a")
        assert agent.wait(300) == -signal.SIGTERM


def test_cancel_spares_a_stranger_that_a_record_names_with_all_that_it_is_known_by(run: Path) -> None:
    environment = {**os.environ, "LAUNCH_RUN": f"{run}b"}  # Another run, whose name begins like this one's.
    with subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True) as stranger:
        keeps(run, replace(Process.here(), start=7), agent=Process.of(stranger.pid).as_dict())
        launch("cancel", "a")
        assert stranger.poll() is None
        stranger.kill()


@pytest.mark.parametrize("keeper", OTHERS.values(), ids=list(OTHERS))
def test_a_run_that_is_kept_elsewhere_runs_as_long_as_its_heartbeat_is_renewed(run: Path, keeper: Process) -> None:
    keeps(run, keeper)
    begin_heartbeat(run, keeper)
    reason = f"process {keeper.pid} on b7 is not visible from here, but the heartbeat is being renewed"
    assert row(launch("status", "a", "--json")) == ("running", reason)
    refused = launch("resume", "a")
    assert (refused.status, refused.err) == (4, f"launch: a is running: cancel it first, or wait ({reason})\n")
    refused = launch("resume", "a", "train.steps=200")
    assert refused.status == 4
    assert reason in refused.err
    cancelled = launch("cancel", "a")
    left = "the request is in its folder, where its keeper will find it"
    told = "launch: a was asked to stop; `launch status a` shows when it has"
    assert (cancelled.status, cancelled.err) == (0, f"launch: a: {reason}; {left}\n{told}\n")
    assert (run / state.CANCEL_REQUEST).exists()


@pytest.mark.parametrize("began", [True, False])
def test_a_run_that_is_kept_elsewhere_and_silent_is_never_lost(
    run: Path, began: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeps(run, ELSEWHERE)
    if not began:
        (run / "state.json").unlink()
    begin_heartbeat(run, ELSEWHERE)
    beat = time.time() - 300
    os.utime(run / HEARTBEAT, (beat, beat))
    now, reason = row(launch("status", "a", "--json"))
    assert now == "not_visible"
    assert reason == (
        f"process {os.getpid()} on b7 is not visible from here, and its last heartbeat is 5 min old; if it is gone, "
        "`launch resume a` continues the run"
    )
    monkeypatch.setattr("launcher.submission.submit._submit", lambda directory, cluster: "8")
    from launcher.submission.submit import resubmit
    from tests.support.helpers import composed_once

    assert resubmit(run, composed_once("model=tiny")) == "8", "a stale heartbeat holds nobody up"


def test_a_run_that_a_reboot_has_ended_is_lost(run: Path) -> None:
    before = replace(Process.here(), boot="another")
    keeps(run, before)
    begin_heartbeat(run, before)
    assert row(launch("status", "a", "--json"))[0] == "running", "another host of the same name keeps it"
    os.utime(run / HEARTBEAT, (0, 0))
    assert row(launch("status", "a", "--json")) == (
        "lost",
        f"{os.uname().nodename} has been rebooted since, which ended the run",
    )


def test_a_run_in_another_container_is_watched_and_ended_from_here(run: Path) -> None:
    """A real one: a PID and a UTS namespace of its own, with a keeper and ranks in it."""
    spaces = ["unshare", "--pid", "--fork", "--mount-proc", "--uts"]
    if subprocess.run([*spaces, "true"], capture_output=True, check=False).returncode:
        pytest.skip("namespaces cannot be made here: that takes root")
    job = {
        "argv": [sys.executable, "-c", "import time; time.sleep(600)"],
        "environment": {"LAUNCH_RUN": str(run)},
        "working_directory": "/",
    }
    (run / "job.json").write_text(json.dumps(job))
    signature.note(run)
    program = f"from pathlib import Path; from launcher.submission import node; node.run(Path({str(run)!r}))"
    keeper = subprocess.Popen([*spaces, "sh", "-c", f'hostname inside && exec {sys.executable} -c "$0"', program])
    deadline = time.monotonic() + 300
    while not (run / "state.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    now, reason = row(launch("status", "a", "--json"))
    assert (now, reason) == (
        "running",
        "process 1 on inside is not visible from here, but the heartbeat is being renewed",
    )
    assert launch("resume", "a").status == 4
    assert launch("cancel", "a").status == 0
    assert keeper.wait(300) == 0
    assert row(launch("status", "a", "--json")) == ("cancelled", "stopped")
    assert not (run / HEARTBEAT).exists()


@pytest.mark.parametrize("age_s", [0, 300])
def test_a_run_on_a_slurm_that_this_host_has_not_is_told_by_its_heartbeat(
    run: Path, age_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    files.write_atomically(run / state.SUBMISSION, {"kind": "slurm", "job_id": "7", "comment": ""})
    state.put(run, "running", job_id="7")
    begin_heartbeat(run, ELSEWHERE)
    beat = time.time() - age_s
    os.utime(run / HEARTBEAT, (beat, beat))
    now, reason = row(launch("status", "a", "--json"))
    assert now == ("not_visible" if age_s else "running")
    assert "squeue is not found: this machine has no Slurm" in str(reason)
    assert "its processes are not visible from here" in str(reason)
    answer = launch("cancel", "a")
    assert (run / state.CANCEL_REQUEST).exists()
    assert answer.status == (4 if age_s else 0)
    if not age_s:
        assert "the request is in its folder: its node will find it, save and end" in answer.err


def test_a_run_in_a_folder_that_cannot_be_written_is_said_to_be_so(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    keeps(run, Process.here())
    monkeypatch.setattr(Path, "touch", refused)
    answer = launch("cancel", "a")
    said = f"launch: the request to end cannot be written to {run}: Permission denied\n"
    assert (answer.status, answer.err) == (4, said)


def test_a_slurm_of_another_cluster_that_does_not_know_the_job_loses_no_run_with_a_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = recorded(tmp_path / "runs" / "a", job="7", now="running")
    monkeypatch.setattr(jobs, "look", lambda _: {})
    assert row(launch("status", "a", "--json"))[0] == "lost"
    begin_heartbeat(run, ELSEWHERE)
    word, reason = row(launch("status", "a", "--json"))
    assert word == "running"
    assert "the heartbeat is being renewed" in str(reason)
