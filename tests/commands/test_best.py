"""``plan=best`` of one run: its layout said, judged, shown and locked as words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import launcher
from launcher.base import machine
from launcher.cli import main
from tests.support.helpers import CPU_HOST

FIXED = ("model=tiny", "hardware=h100_80g", "cluster.gpus_per_node=2", "parallel=fsdp", "train.global_batch_size=4")
WORDS = (*FIXED, "train.loss=full", "checkpointing=none")


@pytest.fixture(autouse=True)
def _this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "facts", lambda: CPU_HOST)


def test_a_check_says_the_layout_that_it_judges(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "plan=best", *WORDS, "--json"]) == 0
    said = capsys.readouterr()
    assumes, chose = said.err.splitlines()
    assert assumes == "launch: plan=best assumes cluster.nodes=1: the cluster's size is not set"
    layout = chose.removeprefix("launch: plan=best is ").split()
    assert main(["check", *WORDS, *layout, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(said.out)
    assert launcher.check([*WORDS, "plan=best"]).as_dict() == json.loads(said.out)


def test_where_nothing_fits_the_words_are_judged_as_they_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "plan=best", *WORDS, "model=llama3_405b", "--json"]) == 3
    said = capsys.readouterr()
    assert json.loads(said.out)["verdict"] == "does_not_fit"
    assert "launch: plan=best: none of " in said.err
    assert said.err.strip().endswith("; the run is checked as typed")


def test_a_lock_holds_the_words_of_the_layout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "lock", *WORDS, "cluster.nodes=1", "plan=best", "--json"]) == 0
    said = capsys.readouterr()
    [chose] = said.err.splitlines()
    words = json.loads(said.out)["recipe"]["overrides"]
    assert words == [*WORDS, "cluster.nodes=1", *chose.removeprefix("launch: plan=best is ").split()]


def test_a_lock_or_a_run_that_goes_on_has_its_layout_already(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["recipe", "lock", *WORDS]) == 0
    Path("run.lock.yaml").write_text(capsys.readouterr().out)
    assert main(["run", "--from", "run.lock.yaml", "plan=best"]) == 2
    assert "error: plan=best: it works in check, show, run and -m" in capsys.readouterr().err
