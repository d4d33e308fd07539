"""Runs that were copied or moved: they go on where they lie, and a copy leaves its original and its processes alone."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import submitit  # noqa: F401  # It closes the handlers that logging has when it is imported, and absl's closes stderr.

from launcher.base import machine
from launcher.base.process import Process
from launcher.data import token_folder
from launcher.job import RUN
from launcher.rundir import contents, home, keeper, run_names, signature, state, status
from tests.support import resuming, training
from tests.support.helpers import CPU_HOST
from tests.support.recorded_runs import recorded
from tests.support.slurm_runs import launch

BASE = (*training.SMALL, "model.num_hidden_layers=1", "hardware=cpu", "cluster.gpus_per_node=2", "train.steps=4")


SCRIPT = """
import json, os
run = os.environ["LAUNCH_RUN"]
with open(f"{run}/metrics.jsonl", "a") as file:
    file.write(json.dumps({"step": 1, "loss": 1.0, "text": open("data.txt").read()}) + "\\n")
os.makedirs(os.environ["LAUNCH_CHECKPOINTS"] + "/mine", exist_ok=True)
open(os.environ["LAUNCH_SPEC"]).close()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the runs are made."""
    made = tmp_path / "made"
    made.mkdir()
    monkeypatch.chdir(made)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(machine, "facts", lambda: CPU_HOST)
    return made


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def _bytes(run: Path) -> dict[Path, bytes]:
    found = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert found
    return found


def _naming(run: Path, text: str) -> list[str]:
    """Files of a run that name a path, but for those of earlier settings."""
    found = (path for path in run.rglob("*") if path.is_file() and path.relative_to(run).parts[0] != "settings")
    return sorted(path.name for path in found if text in path.read_text(errors="replace"))


def test_a_copy_runs_in_its_own_place_and_writes_nothing_into_the_original(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resuming.by_one_process(monkeypatch)
    Path("train.py").write_text(SCRIPT)
    Path("data.txt").write_text("the data")
    assert launch("script=train.py", "hardware=cpu", "cluster.gpus_per_node=1", "run.name=a").status == 0
    run, copy = folder / "runs" / "a", tmp_path / "elsewhere" / "b"
    assert _naming(run, str(run)) == ["home.json"]
    state.put(run, "failed", reason="no more disk")
    before = _bytes(run)
    shutil.copytree(run, copy, symlinks=True)
    monkeypatch.chdir(tmp_path)
    answer = launch("resume", "elsewhere/b", "--trust")
    assert answer.status == 0, answer.err
    said = f"launch: {copy} is a copy of {run}: it continues in its own folder, and the original is not changed\n"
    assert said in answer.err
    assert len(training.lines(run)) == 1
    assert [line["text"] for line in training.lines(copy)] == ["the data", "the data"]
    assert _bytes(run) == before
    assert _json(copy / "home.json")["directory"] == str(copy)
    shutil.rmtree(run)
    state.put(copy, "failed")
    assert launch("resume", "elsewhere/b").status == 0, "it is at home now"
    assert len(training.lines(copy)) == 3


@pytest.mark.parametrize("words", [("parallel=fsdp",), ("parallel=zero2",), ("backend=megatron", "--no-native")])
def test_no_engine_is_told_the_place_of_the_original(
    words: tuple[str, ...], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resuming.by_nobody(monkeypatch, steps=(2, 4))
    assert launch(*BASE, *words, "run.name=a", "data=synthetic").status == 0
    run, copy, changed = folder / "runs" / "a", tmp_path / "b", tmp_path / "c"
    shutil.copytree(run, changed)
    state.put(run, "failed")
    before = _bytes(run)
    shutil.copytree(run, copy)
    for place, more in ((copy, ()), (changed, ("train.steps=8",))):
        answer = launch("resume", str(place), "--trust", *more)
        assert answer.status == 0, answer.err
        assert _naming(place, str(run)) == []
        job = contents.job_of(place)
        assert job["argv"][job["argv"].index("--run") + 1] == str(place)
        assert job["environment"]["LAUNCH_RUN"] == str(place)
        assert job["working_directory"] == str(folder)
    assert _bytes(run) == before


def test_the_runs_of_a_copied_sweep_go_on_in_the_copy(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resuming.by_nobody(monkeypatch, steps=(2, 4))
    monkeypatch.setattr("launcher.actions.sweep.follow", lambda *arguments, **options: 0)
    assert launch("-m", *BASE, "train.seed=1,2", "run.name=s").status == 0
    sweep, copy = folder / "runs" / "s", tmp_path / "copy"
    state.put(sweep / "001", "failed")
    before = _bytes(sweep)
    shutil.copytree(sweep, copy)
    answer = launch("resume", str(copy), "--trust")
    assert answer.status == 0, answer.err
    assert [row["state"] for row in launch("status", str(copy), "--json").json["runs"]] == ["finished"] * 2
    assert _bytes(sweep) == before
    assert _json(copy / "001" / "home.json")["directory"] == str(copy / "001")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that a run may call its own."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as found:
        yield found
        found.kill()


def test_a_copy_of_a_run_that_trains_is_no_run_that_trains_and_cancels_nothing(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    run, copy = recorded(tmp_path / "made" / "runs" / "a"), tmp_path / "made" / "runs" / "b"
    home.write(run, run)
    (run / state.SUBMISSION).write_text(json.dumps({"kind": "local", "job_id": str(process.pid)}))
    state.put(run, "running", keeper=Process.here().as_dict(), agent=Process.of(process.pid).as_dict())
    shutil.copytree(run, copy)
    assert {row["id"]: row["state"] for row in launch("status", "--json").json["runs"]} == {
        "a": "running",
        "b": "prepared",
    }
    reason = f"a copy of {run}, which was running: `launch resume b` continues the copy on its own"
    assert reason in launch("status", "b").out
    assert launch("cancel", "b").err == f"launch: b is not running: {reason}\n"
    assert process.poll() is None
    assert launch("status", "b", "--json").json["runs"][0]["job_id"] is None
    moved = run.with_name("c")
    run.rename(moved)
    assert status.read(moved).state == "running", "a run that was moved is itself"


def test_a_copy_of_a_queued_run_neither_asks_slurm_nor_answers_to_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    run, copy = recorded(tmp_path / "made" / "runs" / "a", job="77"), tmp_path / "made" / "runs" / "b"
    home.write(run, run)
    shutil.copytree(run, copy)
    run_names.remember(copy)
    assert "a copy of" in launch("status", "b").out
    assert launch("cancel", "b").status == 0
    assert run_names.places("77", tmp_path) == [run]
    assert status.adopted(copy) == "77"
    home.settle(copy)
    assert status.adopted(copy) is None, "it would be taken for the job of the copy"


def test_a_project_that_was_moved_keeps_its_runs_working_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resuming.by_nobody(monkeypatch, steps=(2, 4))
    assert launch(*BASE, "run.name=grp/a").status == 0
    monkeypatch.chdir(tmp_path)
    folder.rename(tmp_path / "new")
    answer = launch("resume", "new/runs/grp/a", "train.steps=8", "--trust")
    assert answer.status == 0, answer.err
    assert (
        f"launch: the working folder {folder} is gone; the run has the same place in {tmp_path}/new and"
    ) in answer.err
    assert _json(tmp_path / "new" / "runs" / "grp" / "a" / "job.json")["working_directory"] == str(tmp_path / "new")


def test_a_run_whose_working_folder_is_gone_is_not_queued(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resuming.by_nobody(monkeypatch, steps=(2, 4))
    run = tmp_path / "a"
    assert launch(*BASE, f"run.directory={run}").status == 0
    state.put(run, "failed")
    before = _bytes(run)
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(folder)
    answer = launch("resume", "a")
    assert answer.status == 4
    assert answer.err == (
        f"launch: the run's working folder {folder}, in which its job starts, does not exist: create it again, "
        f"or continue in this folder with a new run: `launch run --from {run} save.load={run}`\n"
    )
    assert _bytes(run) == before


def test_token_ids_that_a_run_holds_itself_are_those_of_the_copy(folder: Path, tmp_path: Path) -> None:
    run, copy = recorded(folder / "runs" / "a", "data=text", "data.path=x.txt"), tmp_path / "b"
    made = run / "cache" / "0123"
    made.mkdir(parents=True)
    (made / "tokens.bin").write_bytes(b"ab")
    facts = {"tokens": 2, "documents": 1, "text_bytes": 2, "marked": False, "left_out": {}, "digest": "d"}
    (made / "meta.json").write_text(json.dumps({"dtype": "uint8", **facts}))
    data, found = contents.spec_of(run).data, token_folder.read(made)
    assert found is not None
    token_folder.record_folder(run, data, found)
    assert _json(run / "tokens.json")["folder"] == f"{RUN}/cache/0123"
    shutil.copytree(run, copy)
    for place in (run, copy):
        there = token_folder.recorded_folder(place, data)
        assert there is not None
        assert there.path == place / "cache" / "0123"


def test_a_run_that_is_seen_under_another_path_while_it_runs_is_no_copy_to_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "_BEAT_S", 0.3)
    monkeypatch.setattr(keeper, "_LOOK_S", 0.05)
    run = recorded(tmp_path / "made" / "runs" / "a", now="running")
    record = {"directory": str(tmp_path / "elsewhere" / "a"), "inode": run.stat().st_ino}
    (tmp_path / "elsewhere" / "a").mkdir(parents=True)
    (run / "home.json").write_text(json.dumps(record | {"inode": 1}))
    signature.note(run)
    with keeper.heartbeat(run):
        answer = launch("resume", "a")
    assert answer.status == 4
    assert "its heartbeat is still renewed: it is the run itself" in answer.err
    assert (run / "state.json").exists()
