"""The hang watch: which ranks it names, what it takes from them, what follows. Real processes, stopped or asleep."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.base import files
from launcher.base.errors import JobFailed
from launcher.job import beat, events
from launcher.rundir import health, status
from launcher.submission import hanging, node, stacks
from tests.support import ranks, train_many, training
from tests.support.slurm_runs import launch

WATCHED = ("start", "hang", "restart")
"""Events of the watch; the states of the run are others."""

SLEEPER = """
import faulthandler, json, os, signal, sys, time
from pathlib import Path
from launcher.job import beat
run, folder = Path(os.environ["LAUNCH_RUN"]), Path(os.environ["LAUNCH_BEATS"])
began = len(list(run.glob("start*")))
(run / f"start{began}").touch()
if began >= int(sys.argv[1]):
    sys.exit(0)
content, now = bytearray(beat.head(0, os.getpid())), time.monotonic()
beat.put(content, beat.Heartbeat(rank=0, pid=0, step=7, phase="backward", began=now, entered=now, usual=0.05))
faulthandler.register(signal.SIGUSR1, file=beat.stack(folder, 0).open("ab"))
beat.collectives(folder, 0).write_text(json.dumps({"asked": 1, "collectives": []}))
beat.path(folder, 0).write_bytes(content)
time.sleep(600)
"""
"""A rank that hangs in step 7 in as many starts as its argument says."""


def sleeper(run: Path, on_hang: str, *, times: int, requeues: int = 3) -> Path:
    """A run whose ranks hang in its first starts."""
    (run / "logs").mkdir(parents=True)
    train = {"timeout_s": 1, "hang_factor": 10, "on_hang": on_hang}
    (run / "spec.json").write_text(json.dumps({"train": train, "cluster": {"requeues": requeues}}))
    job = {
        "argv": [sys.executable, "-c", SLEEPER, str(times)],
        "environment": {"LAUNCH_RUN": str(run), "RANK": "0"},  # As torchrun gives it.
        "working_directory": "/",
    }
    (run / "job.json").write_text(json.dumps(job))
    return run


def wait(until: Callable[[], object], seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.1)


def test_a_run_that_hangs_begins_again_and_says_so(tmp_path: Path) -> None:
    run = sleeper(tmp_path / "a", "restart", times=1)
    node.run(run)
    assert [line["kind"] for line in events.read(run) if line["kind"] in WATCHED] == ["start", "hang", "restart"]
    ending = status.read(run)
    assert (ending.state, ending.reason) == ("finished", "restarted after a hang, from the start")


def test_a_run_that_hangs_each_time_is_given_up(tmp_path: Path) -> None:
    run = sleeper(tmp_path / "a", "restart", times=9, requeues=1)
    with pytest.raises(JobFailed):
        node.run(run)
    assert [line["kind"] for line in events.read(run) if line["kind"] in WATCHED] == [
        "start",
        "hang",
        "restart",
        "hang",
    ]
    reason = status.read(run).reason or ""
    assert re.match(r"step 7 has hung for \d+ s \(usually 0\.\d+ s\): rank 0 on ", reason)
    assert reason.endswith("; not restarted: 2 attempts in a row left no new checkpoint (cluster.requeues=1)")


def test_a_hang_can_be_the_end(tmp_path: Path) -> None:
    run = sleeper(tmp_path / "a", "fail", times=9)
    with pytest.raises(
        JobFailed, match=r"in phase backward, at <module> \(<string>:15\); stacks of all ranks: logs/hangs/step-7.txt"
    ):
        node.run(run)
    assert status.read(run).state == "failed"
    assert 'File "<string>", line 15 in <module>' in (run / "logs" / "hangs" / "step-7.txt").read_text()


def test_a_stopped_rank_is_named_with_the_stacks_and_collectives_of_those_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "runs" / "a"
    training.prepare(run, "parallel=ddp", "train.steps=3000", "train.timeout_s=1", ranks=2)
    (run / "job.json").write_text('{"argv": ["python"], "gpus_per_node": 2}')
    monkeypatch.setenv("PATH", "")  # No py-spy: the ranks have to answer.
    [port] = training.free_ports(1)
    with contextlib.closing(hanging.watches(run, None)) as attempts:
        watch = next(attempts)
        environment = {**training.environment(), **watch.environment}
        place = {"imports": train_many.with_fsdp, "count": 2, "environment": environment, "log": tmp_path / "log"}
        job = threading.Thread(target=ranks.run, args=(train_many.main, ["fsdp", f"{run}:{port}"]), kwargs=place)
        job.start()
        paths = [beat.path(Path(watch.environment[beat.FOLDER]), rank) for rank in (0, 1)]
        wait(lambda: all((each := beat.read(path)) is not None and each.step > 5 for path in paths))
        pids = [each.pid for path in paths if (each := beat.read(path)) is not None]
        with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as agent:
            os.kill(pids[1], signal.SIGSTOP)
            wait(lambda: looked(watch, agent) and "stopped" in (health_of(run) or ""))
            page = health.stacks(run)
            os.kill(pids[1], signal.SIGCONT)
            wait(lambda: looked(watch, agent) and health_of(run) is None)
        for pid in pids:
            os.kill(pid, signal.SIGUSR2)
        job.join()
    [hang] = [line for line in events.read(run) if line["kind"] == "hang" and "stopped" in line["text"]]
    assert "rank 1 on " in hang["text"]
    assert " is stopped (SIGSTOP) in phase " in hang["text"]
    assert "; 1 rank waits in phase " in hang["text"]
    waiting, stopped = hang["ranks"]
    assert (waiting["state"], waiting["source"]) == (None, "faulthandler")
    assert waiting["collectives"][-1]["name"] == "gloo:all_reduce"
    assert not waiting["collectives"][-1]["done"]
    assert any("loop.py" in frame for frame in waiting["stack"])
    assert (stopped["state"], stopped["collectives"]) == ("stopped (SIGSTOP)", None)
    assert page is not None
    assert "it did not report its collectives" in page.read_text()


def looked(watch: hanging.HangWatch, agent: subprocess.Popen[bytes]) -> bool:
    watch.look(agent)
    return True


def health_of(run: Path) -> str | None:
    return next((line["text"] for line in health.now(run) if line["kind"] == "hang"), None)


def test_a_script_that_writes_metrics_is_watched_by_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import os, time\n"
        "for step in range(1, 9):\n"
        "    with open(os.environ['LAUNCH_RUN'] + '/metrics.jsonl', 'a') as file:\n"
        '        file.write(\'{"step": %d, "loss": 1.0}\\n\' % step)\n'
        "    time.sleep(0.6 if step < 5 else 600)\n"
    )
    words = ("script=train.py", "cluster.gpus_per_node=1", "hardware=cpu", "train.timeout_s=2", "train.hang_factor=1")
    said = launch(*words, "train.on_hang=fail", "run.name=a")
    assert said.status == 5
    assert "launch: step 5 has hung for 2 s (usually " in said.err
    assert "rank 0 on " in said.err
    assert "in its script" in said.err


def test_a_hang_holds_until_the_ranks_are_started_again(tmp_path: Path) -> None:
    events.add(tmp_path, "hang", "step 7 has hung", step=7)
    assert health.beside(tmp_path, "running", "on its way") == "on its way; step 7 has hung"
    events.add(tmp_path, "restart", "started again", step=None)
    assert health.beside(tmp_path, "running", None) == "started again"
    events.add(tmp_path, "start", "the ranks are started", step=None)
    assert health.beside(tmp_path, "failed", "its own reason") == "its own reason"


def row(rank: int, step: int, number: int) -> dict[str, object]:
    collectives = [{"name": "gloo:all_reduce", "group": "default_pg", "number": number, "sizes": [[2]], "done": False}]
    return {"rank": rank, "step": step, "state": None, "collectives": collectives}


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([row(0, 5, 20), row(1, 5, 20)], [0, 1]),
        ([row(0, 5, 20), row(1, 4, 25)], [1]),
        ([row(0, 5, 19), row(1, 5, 20), row(2, 5, 20)], [0]),
        ([row(0, 5, 19), {**row(1, 5, 20), "state": "stopped (SIGSTOP)"}], [1]),
    ],
)
def test_the_rank_is_named_for_which_the_others_wait(rows: list[dict[str, object]], named: list[int]) -> None:
    assert [each["rank"] for each in health.suspects(rows)] == named


def test_frames_are_those_of_the_main_thread() -> None:
    spied = (
        'Thread 7 (idle): "Thread-1"\n    sleep (other.py:3)\n'
        'Thread 6 (idle): "MainThread"\n    wait (threading.py:5)\n    step (train.py:9)\n'
    )
    assert stacks.frames(spied) == ["wait (threading.py:5)", "step (train.py:9)"]
    dumped = (
        'Thread 0x00007f (most recent call first):\n  File "/a/other.py", line 3 in sleep\n\n'
        'Current thread 0x00007e (most recent call first):\n  File "/a/train.py", line 9 in step\n'
    )
    assert stacks.frames(dumped) == ["step (/a/train.py:9)"]


def test_a_folder_of_an_older_version_has_nothing_to_say(tmp_path: Path) -> None:
    (tmp_path / events.FILE).write_text('not json\n{"kind": "hang"}\n[1]\n')
    assert health.now(tmp_path) == []
    assert files.read_json(tmp_path / events.FILE) is None
