"""``launch rehearse`` as it is typed: one real rank of four, its evidence for the run, and words that are wrong."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import launcher
from launcher import cli
from launcher.actions.resume_changed import submit_changed
from launcher.base.errors import ConfigErrors, JobFailed
from launcher.rehearsing import process
from launcher.rehearsing.process import gflops
from launcher.rehearsing.rehearse import Stage
from launcher.spec import RunSpec
from launcher.submission import submit
from tests.support.helpers import make_spec, needs
from tests.support.rehearsed_ranks import Worker
from tests.support.training import SMALL

needs("torch", "the rehearsed rank needs the extra 'fsdp'")

WORDS = (*SMALL, "parallel=fsdp", "hardware=cpu", "cluster.gpus_per_node=4", "train.steps=2")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _json(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> Any:
    assert cli.main([*words, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_a_rank_is_measured_and_its_run_knows_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = _json(capsys, "rehearse", *WORDS)
    found = document["rehearse"]
    assert (found["rank"], found["stage"], found["verdict"], found["world"]) == (0, 0, "fits", 4)
    phases = {phase["phase"]: phase for phase in found["phases"]}
    for name in ("load", "forward", "backward", "optimizer"):
        assert phases[name]["predicted_bytes"] == pytest.approx(phases[name]["measured_bytes"], rel=0.2), name
    assert phases["checkpoint_save"]["measured_bytes"] is None
    assert found["step_seconds"] > 0
    assert document["check"]["rehearsed"]["measured_bytes"] == max(p["measured_bytes"] or 0 for p in phases.values())
    assert (Path(found["built"][0]["folder"]) / process.LOG).is_file()
    checked = _json(capsys, "check", *WORDS, "train.steps=9")
    assert checked["rehearsed"] == document["check"]["rehearsed"]


def test_a_run_starts_by_its_rehearsal_alone_where_that_is_demanded(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = (*WORDS, "hardware.memory_bytes=5e5")
    assert cli.main(["run", *small, "--rehearsed"]) == 2
    assert "launch rehearse " in capsys.readouterr().err
    monkeypatch.setattr("launcher.actions.rehearse.Stage", partial(Stage, run=Worker(0.001)))
    checked = _json(capsys, "rehearse", *small)
    assert (checked["check"]["verdict"], checked["rehearse"]["verdict"]) == ("does_not_fit", "fits")
    monkeypatch.setattr(submit, "submit", lambda directory, spec: "1")
    monkeypatch.setattr("launcher.actions.run.follow", lambda directory, spec, show: 0)
    assert cli.main(["run", *small, "run.name=a"]) == 3
    assert "`launch run --rehearsed` takes that verdict" in " ".join(capsys.readouterr().err.split())
    assert cli.main(["run", *small, "run.name=a", "--rehearsed"]) == 0
    plan = json.loads((here / "runs" / "a" / "plan.json").read_text())
    assert (plan["verdict"], plan["rehearsed"]["verdict"]) == ("fits", "fits")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--steps", "0"), "--steps=0: must train at least one step"),
        (("--minutes", "-1"), "--minutes=-1.0: must be a time in minutes above zero"),
        (("--layers", "two"), "--layers=two: one or two numbers of layers"),
        (("--layers", "9"), "--layers=9: one depth or two, each from 1 to the model's 2 layers"),
        (("--stage", "1"), "--stage=1: the run has 1 pipeline stage, counted from 0"),
        (("--results", "nothing"), "--results="),
        (("model.hidden_size=63",), "model.num_attention_heads=4: must divide the hidden size 63"),
    ],
)
def test_words_that_are_wrong_are_refused(
    here: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["rehearse", *WORDS, *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_script_of_the_users_own_is_not_rehearsed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "train.py").write_text("")
    assert cli.main(["rehearse", "script=train.py", "model=tiny", "hardware=cpu"]) == 2
    assert "your script has its own training loop" in " ".join(capsys.readouterr().err.split())


def test_a_rehearsal_that_was_submitted_is_no_run_that_goes_on_otherwise(here: Path) -> None:
    run = here / "runs" / "a"
    run.mkdir(parents=True)
    for name in ("spec.json", "rehearse.json"):
        (run / name).write_text("{}")
    with pytest.raises(ConfigErrors, match="it is the rehearsal of a run"):
        submit_changed(run, ["train.steps=9"], trusted=False)


def _start(spec: RunSpec, folder: Path, program: str, monkeypatch: pytest.MonkeyPatch, seconds: float = 400) -> None:
    """Rehearse with another program in the worker's place."""
    (folder / "python").write_text(f"#!/bin/sh\n{program}\n")
    (folder / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    process.rehearse(spec, 0, steps=1, folder=folder / "rank", seconds=seconds, environment={})


def test_a_worker_that_fails_is_told_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(*WORDS)
    with pytest.raises(JobFailed) as failed:
        _start(spec, tmp_path, "echo 'ValueError: a fish'; echo bye; exit 1", monkeypatch)
    assert f"its log, {tmp_path / 'rank' / process.LOG}, ends:\n  ValueError: a fish" in str(failed.value)
    assert failed.value.exit_status == 5
    (tmp_path / "refused").mkdir()
    written = """echo '{"error": "no such rank"}' > "${word#--out=}\""""
    refusal = f'for word in "$@"; do case $word in --out=*) {written};; esac; done'
    with pytest.raises(ConfigErrors, match="no such rank"):
        _start(spec, tmp_path / "refused", f"{refusal}; exit 2", monkeypatch)
    (tmp_path / "killed").mkdir()
    with pytest.raises(JobFailed, match="ended by signal 9: the kernel may have been out of memory"):
        _start(spec, tmp_path / "killed", "kill -9 $$", monkeypatch)
    (tmp_path / "slow").mkdir()
    with pytest.raises(JobFailed, match=r"ended after 0\.0 minutes, its limit"):
        _start(spec, tmp_path / "slow", "exec sleep 600", monkeypatch, seconds=1)


def test_a_processor_without_torch_has_no_known_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    assert gflops("bf16", {}) is None


def test_python_rehearses_as_the_verb_does(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.actions.rehearse.Stage", partial(Stage, run=Worker()))
    found = launcher.rehearse([*WORDS], layers=[1], steps=2)
    assert (found.verdict, found.rehearsal.worst.whole) == ("unknown", False)
    assert str(found).startswith("NO VERDICT")
    with pytest.raises(ConfigErrors, match="from Python a run is rehearsed on this machine"):
        launcher.rehearse([*WORDS, "cluster=slurm"])
