"""What a node does with a recorded job, and how a run's state is told from its directory. Real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from launcher.base import files, process
from launcher.base.errors import JobFailed
from launcher.rundir import attempts, run_names, state, status
from launcher.submission import node
from launcher.submission.processes import SlurmPlace


def recorded(run: Path, program: str) -> Path:
    """A run directory whose job is a Python program."""
    (run / "logs").mkdir(parents=True)
    (run / "checkpoints").mkdir()
    (run / "spec.json").write_text("{}")
    job = {
        "argv": [sys.executable, "-c", program],
        "environment": {"GREETING": "hello", "LAUNCH_RUN": str(run)},
        "working_directory": "/",
    }
    (run / "job.json").write_text(json.dumps(job))
    return run


def test_a_job_that_ends_well_is_finished(tmp_path: Path) -> None:
    run = recorded(tmp_path / "runs" / "a", "import os; print(os.environ['GREETING'])")
    assert status.read(run).state == "prepared"
    node.run(run)
    assert status.read(run).state == "finished"
    assert (run / "logs" / "node.out").read_text() == "hello\n"


def test_the_earliest_error_that_a_rank_wrote_is_the_reason(tmp_path: Path) -> None:
    program = (
        "import json, sys, time\n"
        "for rank, text in ((1, 'the data ends here'), (0, 'peer left')):\n"
        f"    open(f'{tmp_path}/a/logs/error.rank{{rank}}.json', 'w').write(json.dumps({{'message': text}}))\n"
        "    time.sleep(0.05)\n"
        "sys.exit(3)"
    )
    run = recorded(tmp_path / "a", program)
    with pytest.raises(JobFailed, match=r"^rank 1: the data ends here$"):
        node.run(run)
    ending = status.read(run)
    assert (ending.state, ending.reason) == ("failed", "rank 1: the data ends here")


def test_a_rank_ended_by_a_signal_is_named_from_the_agents_report(tmp_path: Path) -> None:
    report = "Root Cause (first observed failure):\\n  rank      : 1 (local_rank: 1)\\n  exitcode  : -9 (pid: 7)\\n"
    run = recorded(tmp_path / "a", f"import sys; sys.stderr.write('{report}'); sys.exit(1)")
    with pytest.raises(JobFailed, match="rank 1 was ended by SIGKILL: the kernel may have been out of memory"):
        node.run(run)


def test_without_any_report_the_last_line_is_the_reason(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", "raise SystemExit('no such table')")
    with pytest.raises(JobFailed, match=r"^no such table \(exit status 1; "):
        node.run(run)


def test_a_second_attempt_is_not_judged_by_the_first(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", "pass")
    (run / "logs" / "error.rank0.json").write_text('{"message": "old"}')
    (run / "logs" / "outcome.json").write_text('{"state": "interrupted", "step": 3}')
    node.run(run)
    assert status.read(run).state == "finished"


def test_an_interrupted_worker_leaves_a_cancelled_run_that_names_its_step(tmp_path: Path) -> None:
    write = f"open('{tmp_path}/a/logs/outcome.json', 'w').write('{{\"state\": \"interrupted\", \"step\": 7}}')"
    run = recorded(tmp_path / "a", write)
    node.run(run)
    ending = status.read(run)
    assert (ending.state, ending.reason) == ("cancelled", "stopped; `launch resume a` continues from step 7")


@pytest.mark.parametrize("own_session", [False, True])
def test_no_process_of_the_job_outlives_it(tmp_path: Path, own_session: bool) -> None:
    program = (
        "import subprocess, sys\n"
        "wait = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        f"child = subprocess.Popen(wait, start_new_session={own_session})\n"
        f"open('{tmp_path}/pid', 'w').write(str(child.pid))"
    )
    node.run(recorded(tmp_path / "a", program))
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 300
    while process.alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not process.alive(pid)


def test_an_attempt_that_another_node_has_replaced_ends_and_says_nothing(tmp_path: Path) -> None:
    run = recorded(
        tmp_path / "a", f"import os, time; open('{tmp_path}/pid', 'w').write(str(os.getpid())); time.sleep(600)"
    )
    (run / "spec.json").write_text('{"cluster": {"requeues": 3}}')
    place = SlurmPlace(
        job_id="7",
        number=0,
        attempt="7_0",
        told_to_save=threading.Event(),
        told_to_end=threading.Event(),
        requeue=lambda: None,
        seconds_left=lambda: None,
    )
    keeper = threading.Thread(target=node.run, args=(run,), kwargs={"place": place})
    keeper.start()
    deadline = time.monotonic() + 300
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    attempts.begin(run, "7_1")
    state.put(run, "running", reason="of the second attempt")
    keeper.join(300)
    assert not keeper.is_alive()
    assert not process.alive(int((tmp_path / "pid").read_text()))
    assert (files.read_json(run / "state.json") or {})["reason"] == "of the second attempt"


def test_a_run_whose_keeper_is_gone_is_lost(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", "pass")
    with subprocess.Popen(["true"]) as gone:
        keeper = process.Process.of(gone.pid).as_dict()
    state.put(run, "running", keeper=keeper)
    ending = status.read(run)
    assert (ending.state, ending.reason) == ("lost", "the process that managed the job on this machine is gone")


def test_a_running_job_can_be_asked_to_stop(tmp_path: Path) -> None:
    from launcher.actions.stop import stop

    run = recorded(tmp_path / "a", "import time; time.sleep(600)")
    keeper = threading.Thread(target=node.run, args=(run,))
    keeper.start()
    deadline = time.monotonic() + 300
    while status.read(run).state != "running" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert stop(run, signal.SIGTERM)
    keeper.join(300)
    assert not keeper.is_alive()
    assert status.read(run).state == "cancelled"
    assert not stop(run, signal.SIGTERM), "what has ended is not stopped again"


def test_runs_are_found_by_name_and_by_path(tmp_path: Path) -> None:
    run = recorded(tmp_path / "runs" / "a", "pass")
    assert run_names.find([], tmp_path) == [run]
    assert run_names.find(["a", "runs/a"], tmp_path) == [run, run]
    with pytest.raises(FileNotFoundError, match="nope"):
        run_names.find(["nope"], tmp_path)
