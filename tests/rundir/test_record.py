"""Names of new runs: launches that are equal and begin in the same second, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.base import machine
from tests.support import resuming
from tests.support.helpers import CPU_HOST, ROOT
from tests.support.slurm_runs import launch

WORDS = ("script=train.py", "hardware=cpu", "cluster.gpus_per_node=1")
PROGRAM = """
import sys, time
from pathlib import Path
from launcher import cli
from launcher.rundir import record
from launcher.submission import submit
record.time.strftime = lambda form: "20261122-190000"
submit._start_here = lambda directory, cluster: "1"
import launcher.actions.follow as following
following.follow = lambda *arguments, **options: 0
Path(f"ready-{sys.argv[1]}").touch()
while not Path("go").exists():
    time.sleep(0.001)
sys.exit(cli.main(sys.argv[2:]))
"""
"""A launch of one second, which begins with the others and starts no job."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(machine, "facts", lambda: CPU_HOST)
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    return tmp_path


def _at_once(count: int, *words: str) -> list[subprocess.CompletedProcess[str]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    commands = [[sys.executable, "-c", PROGRAM, str(number), *words] for number in range(count)]
    options = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, **options) for command in commands]  # type: ignore[call-overload]
    deadline = time.monotonic() + 300
    while len(list(Path().glob("ready-*"))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    Path("go").touch()
    ended = [(each.args, *each.communicate(), each.returncode) for each in started]
    return [subprocess.CompletedProcess(args, status, out, err) for args, out, err, status in ended]


def test_equal_launches_of_one_second_have_a_run_each(folder: Path) -> None:
    ended = _at_once(3, *WORDS)
    assert [each.returncode for each in ended] == [0, 0, 0], [each.stderr for each in ended]
    first, second, third = sorted(path.name for path in (folder / "runs").iterdir())
    assert first.startswith("20261122-190000-")
    assert (second, third) == (f"{first}-2", f"{first}-3")
    for path in (folder / "runs").iterdir():
        assert json.loads((path / "home.json").read_text())["directory"] == str(path)
        assert json.loads((path / "spec.json").read_text())["script"] == "train.py"


def test_a_name_that_was_given_is_refused_where_it_is_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resuming.by_nobody(monkeypatch, steps=())
    assert launch(*WORDS, "run.name=mine").status == 0
    answer = launch(*WORDS, "run.name=mine")
    assert answer.status == 4
    assert f"{folder}/runs/mine exists and is never overwritten: choose another run.name" in answer.err
    assert [path.name for path in (folder / "runs").iterdir()] == ["mine"]


def test_sweeps_of_one_second_have_a_folder_each_and_one_of_which_nothing_is_kept_leaves_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resuming.by_nobody(monkeypatch, steps=())
    monkeypatch.setattr("launcher.actions.sweep.follow", lambda *arguments, **options: 0)
    monkeypatch.setattr("launcher.rundir.record.time.strftime", lambda form: "20261122-190000")
    for _ in range(2):
        assert launch("-m", *WORDS, "train.seed=1,2").status == 0
    assert launch("-m", "model=tiny", "hardware=cpu", "parallel.tensor=7,9", "--json").status == 2
    assert sorted(path.name for path in (folder / "runs").iterdir()) == [
        "20261122-190000-sweep",
        "20261122-190000-sweep-2",
    ]
