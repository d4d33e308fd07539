"""`launch run` as its user meets it: real processes through submitit and torchrun, on a script that needs no model."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.base.process import alive
from launcher.rundir import contents, lock, status
from tests.support import hostile, slurm_runs

LAUNCH = str(Path(sys.executable).with_name("launch"))
SCRIPT = """
import argparse, json, os, signal, sys, time
import sibling
parser = argparse.ArgumentParser()
parser.add_argument("--start", type=int, default=0)
parser.add_argument("--do", default="end")
options = parser.parse_args()
rank, run = int(os.environ["RANK"]), os.environ["LAUNCH_RUN"]
json.load(open(os.environ["LAUNCH_SPEC"]))
print("rank", rank, "of", os.environ["WORLD_SIZE"], "starts at", options.start, flush=True)
open(f"{run}/pid{rank}", "w").write(str(os.getpid()))
assert __file__ == sibling.__file__.replace("sibling", "train") and sys.argv[0] == "train.py"
if rank == 0:
    with open(f"{run}/metrics.jsonl", "a") as metrics:
        metrics.write('{"step": 1, "loss": 3.0}\\n{"step": 2, "loss": 1.0}\\n')
if options.do in ("fail", "die") and rank == 1:
    while not os.path.exists(f"{run}/pid0"):  # With this rank torchrun ends the other one, which is to speak first.
        time.sleep(0.01)
if options.do == "fail" and rank == 1:
    raise ValueError("the learning rate is a fish")
if options.do == "die" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if options.do == "wait" and not os.path.exists(f"{run}/checkpoints/step"):
    def leave(*_):
        open(f"{run}/checkpoints/step", "w").write("3")
        sys.exit(0)
    signal.signal(signal.SIGTERM, leave)
    while True:
        time.sleep(0.1)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "sibling.py").touch()
    # The script sees its own folder first, as it would without us; our processes around it do not.
    hostile.plant(tmp_path, "torch", "numpy", "submitit", "cloudpickle", "dataclasses", "launcher")
    return tmp_path


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, for commands of this process: what starts nothing needs no other."""
    monkeypatch.chdir(folder)
    return folder


def launch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([LAUNCH, *words], cwd=folder, capture_output=True, text=True, timeout=500, check=False)


def script(name: str, do: str = "end") -> tuple[str, ...]:
    return ("model=tiny", "script=train.py", f"run.name={name}", "--", "--start", "5", "--do", do)


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(done.stdout)
    assert content["schema"] == 1
    return content


def wait_for(run: Path, wanted: str, seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (run / "pid0").exists() and (run / "pid1").exists() and status.read(run).state == wanted:
            return
        time.sleep(0.05)
    raise AssertionError(f"{status.read(run)} is not {wanted} after {seconds} s")


def assert_ranks_gone(run: Path) -> None:
    pids = [int((run / f"pid{rank}").read_text()) for rank in (0, 1)]
    deadline = time.monotonic() + 300
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def test_show_prints_what_run_starts_and_a_script_runs_under_the_same_check_and_record(folder: Path) -> None:
    shown = document(launch(folder, "show", "--json", *script("a")))
    done = launch(folder, "--json", *script("a"))
    assert done.returncode == 0, done.stderr
    directory = folder / "runs" / "a"
    job = contents.job_of(directory)
    assert shown["argv"] == job["argv"]
    assert shown["environment"] == job["environment"]
    assert "{run}" not in json.dumps(shown)
    assert "{run}/logs/ranks" in launch(folder, "show", "model=tiny").stdout
    content = document(done)
    assert content["run"] == {
        "id": "a",
        "directory": str(directory),
        "state": "finished",
        "job_id": content["run"]["job_id"],
    }
    assert content["check"]["verdict"] == "fits"
    assert shown["files"] == {"run_script.py": (directory / "run_script.py").read_text()}
    assert (directory / "script" / "train.py").read_text() == SCRIPT
    found = lock.read(directory)
    assert found.content["script"] == {"path": "train.py", "sha256": hashlib.sha256(SCRIPT.encode()).hexdigest()}
    assert found.losses == (
        {"step": 1, "loss": 3.0, "grad_norm": None},
        {"step": 2, "loss": 1.0, "grad_norm": None},
    )
    expected = {"spec.json", "plan.json", "job.json", "home.json", "run.lock.yaml", "logs", "checkpoints", "state.json"}
    assert expected <= {path.name for path in directory.iterdir()}
    outputs = [path.read_text() for path in directory.glob("logs/ranks/*/attempt_0/*/stdout.log")]
    assert sorted(outputs) == ["rank 0 of 2 starts at 5\n", "rank 1 of 2 starts at 5\n"]
    overrides = json.loads((directory / "plan.json").read_text())["overrides"]
    assert overrides == ["model=tiny", "script=train.py", "run.name=a"]
    assert launch(folder, "status").stdout.splitlines()[1].split()[:2] == ["a", "finished"]


def test_a_failing_job_ends_with_its_own_last_error(folder: Path) -> None:
    done = launch(folder, *script("c", "fail"))
    assert done.returncode == 5
    assert "the job failed: ValueError: the learning rate is a fish" in done.stderr
    assert "Traceback" not in done.stderr
    assert "launch resume c" in done.stderr
    assert f"fix {folder}/runs/c/script/train.py, or start a new run" in done.stderr
    assert done.stdout == "rank 0 of 2 starts at 5\n", "what rank 0 prints is shown"
    said = launch(folder, "logs", "c").stdout
    traceback = r"==> .*/1/stderr.log <==\nTraceback(.*\n)+ValueError: the learning rate"
    assert re.search(rf"^c is failed: .*\n(step .*\n)*{traceback}", said)
    assert "rank 0 of 2 starts at 5" in said
    assert "Root Cause (first observed failure)" not in said, "torchrun's own report is folded"
    assert re.search(r"\nfolded: \d+ lines of torchrun and submitit \(launch logs c --all\)\n$", said)
    assert "Root Cause (first observed failure)" in launch(folder, "logs", "c", "--all").stdout


@pytest.mark.thorough
def test_a_killed_rank_is_named(folder: Path) -> None:
    done = launch(folder, *script("d", "die"))
    assert done.returncode == 5
    assert "rank 1 was ended by SIGKILL" in done.stderr
    assert_ranks_gone(folder / "runs" / "d")


def test_ctrl_c_stops_the_job_and_its_children_and_the_run_goes_on_later(folder: Path) -> None:
    run = folder / "runs" / "e"
    process = subprocess.Popen(
        [LAUNCH, *script("e", "wait")], cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for(run, "running")
    os.killpg(process.pid, signal.SIGINT)  # The whole foreground group, as a terminal does it.
    _, said = process.communicate(timeout=500)
    assert process.returncode == 130, said
    assert "stopping after this step" in said
    assert status.read(run).state == "cancelled"
    assert (run / "checkpoints" / "step").exists(), "the ranks were given the time to save"
    assert_ranks_gone(run)
    (folder / "train.py").write_text("raise SystemExit('edited')")
    resumed = launch(folder, "resume", "e")
    assert resumed.returncode == 0, resumed.stderr
    assert "train.py has changed since it was recorded; the run continues with its own copy" in resumed.stderr
    printed = ["rank 0 of 2 starts at 5", "", "loss 3.0000 -> 1.0000 in 2 steps", f"run directory {run}"]
    assert resumed.stdout.splitlines() == printed, "no table of memory: nobody measured a script"
    assert status.read(run).state == "finished"
    assert "nothing to resume" in launch(folder, "resume", "e").stderr


@pytest.mark.usefixtures("without_torch")
def test_a_launch_that_was_started_to_ignore_ctrl_c_says_nothing_of_it_and_lives(folder: Path) -> None:
    run = folder / "runs" / "i"
    deaf = ["sh", "-c", "trap '' INT HUP; exec \"$@\"", "sh", LAUNCH, *script("i", "wait")]
    process = subprocess.Popen(deaf, cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for(run, "running")
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        os.killpg(process.pid, signal.SIGHUP)
    assert launch(folder, "cancel", "i").returncode == 0
    _, said = process.communicate(timeout=500)
    assert "stopping after this step" not in said
    assert "killed" not in said
    assert "interrupted" not in said
    assert (run / "checkpoints" / "step").exists(), "the ranks were given the time to save"


@pytest.mark.usefixtures("without_torch")
def test_a_run_is_cancelled_from_elsewhere(folder: Path) -> None:
    run = folder / "runs" / "f"
    process = subprocess.Popen([LAUNCH, *script("f", "wait")], cwd=folder, stderr=subprocess.PIPE, text=True)
    wait_for(run, "running")
    assert launch(folder, "cancel", "f").returncode == 0
    process.communicate(timeout=500)
    assert process.returncode == 130
    assert status.read(run).state == "cancelled"


@pytest.mark.usefixtures("without_torch")
def test_of_two_launches_into_one_directory_one_wins(folder: Path) -> None:
    both = [subprocess.Popen([LAUNCH, *script("g")], cwd=folder, stderr=subprocess.PIPE, text=True) for _ in (1, 2)]
    said = [process.communicate(timeout=500)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 4], said
    assert any("exists and is never overwritten" in text for text in said)
    assert not list((folder / "runs").glob(".*")), "the one that lost leaves nothing behind"


def test_an_existing_directory_is_left_as_it_is(here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "notes").write_text("precious")
    done = slurm_runs.launch("model=tiny", "script=train.py", "run.directory=mine")
    assert done.status == 4
    assert "exists and is never overwritten: choose another run.name or run.directory" in done.err
    assert [path.name for path in (here / "mine").iterdir()] == ["notes"]


def test_a_run_folder_that_cannot_be_written_is_named(here: Path) -> None:
    (here / "file").write_text("")
    done = slurm_runs.launch("model=tiny", "script=train.py", "run.directory=file/run")
    assert done.status == 4
    assert f"the run directory {here}/file/run cannot be written" in done.err


def test_what_does_not_fit_is_not_started(here: Path) -> None:
    done = slurm_runs.launch("model=175b", "parallel=fsdp", "precision=bf16", "script=train.py", "run.name=h")
    assert done.status == 3
    assert "not started, because it does not fit" in done.err
    assert not (here / "runs").exists()


def test_a_missing_script_and_missing_data_are_wrong_configurations(here: Path) -> None:
    done = slurm_runs.launch("model=tiny", "script=nope.py")
    assert done.status == 2
    assert "there is no such file" in done.err
    done = slurm_runs.launch("model=tiny", "data.path=nope/*.txt")
    assert done.status == 2
    assert "no file matches" in done.err
    (here / "empty.txt").write_text("")
    done = slurm_runs.launch("model=tiny", "data.path=empty.txt")
    assert done.status == 2
    assert "every file that matches is empty" in done.err
    (here / "binary.bin").write_bytes(bytes(range(256)))
    done = slurm_runs.launch("model=tiny", "data.path=*.bin")
    assert done.status == 2
    assert "data.path=binary.bin: it is not UTF-8 text" in done.err
    done = slurm_runs.launch("model=tiny", "model.weights=nope", "save.load=nope", "data.tokenizer=nope")
    assert done.status == 2
    for path in ("model.weights", "save.load", "data.tokenizer"):
        assert f"error: {path}=nope: " in done.err
    assert not (here / "runs").exists()


def test_a_gpu_that_this_machine_lacks_is_checked_but_not_run(here: Path) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    done = slurm_runs.launch("model=tiny", "hardware=h100_80g")
    assert done.status == 2
    assert "this machine has no GPU" in done.err


def test_the_debug_mode_runs_one_rank_in_the_foreground(folder: Path) -> None:
    (folder / "one.py").write_text("import os; print('world', os.environ['WORLD_SIZE'], input())")
    words = ("--debug", "model=tiny", "script=one.py", "run.name=i")
    assert "cluster.gpus_per_node=1" in launch(folder, *words).stderr
    done = subprocess.run(
        [LAUNCH, *words, "cluster.gpus_per_node=1"],
        cwd=folder,
        input="typed\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "world 1 typed\n"), done.stderr
