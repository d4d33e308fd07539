"""``launch plan --save NAME``: the first layout as a recipe that composes to exactly that layout."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from launcher.actions import plan as action
from launcher.base import machine
from launcher.base.package import __version__
from launcher.cli import main
from launcher.planner.planning import plan
from launcher.planner.question import ask
from tests.support.helpers import CPU_HOST

WORDS = ("model=tiny", "hardware=h100_80g", "cluster.gpus_per_node=2", "train.loss=full", "checkpointing=none")
FIXED = (*WORDS, "parallel=fsdp", "train.global_batch_size=4")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "facts", lambda: CPU_HOST)


def first(*words: str) -> tuple[str, ...]:
    return plan(ask(words)).layouts[0].overrides


@pytest.mark.parametrize(
    "words",
    [FIXED, (*WORDS, "parallel=fsdp,ddp", "zero.stage=2,3"), (*FIXED, "parallel.tensor=2", "run.name=mine")],
)
def test_the_recipe_composes_to_the_layout(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    expected = plan(ask(words)).layouts[0].spec.hash
    assert main(["plan", *words, "--save", "mine.yaml"]) == 0
    said = capsys.readouterr().err
    assert said.endswith(f"the first layout is in {Path.cwd()}/recipes/mine.yaml: `launch recipe=mine` starts it\n")
    assert main(["check", "recipe=mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spec_hash"] == expected


def test_the_layout_of_a_question_about_a_recipe_is_a_recipe_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    Path("recipes").mkdir()
    Path("recipes/base.yaml").write_text(
        "schema: 1\nsummary: a test\nchoose: {model: tiny, hardware: h100_80g, parallel: fsdp}\n"
        "set: {cluster.gpus_per_node: 2, train.loss: full, train.global_batch_size: 4}\n"
    )
    expected = plan(ask(["recipe=base"])).layouts[0].spec.hash
    assert main(["plan", "recipe=base", "--save", "mine"]) == 0
    Path("recipes/base.yaml").unlink()
    capsys.readouterr()
    assert main(["check", "recipe=mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spec_hash"] == expected


def test_the_recipe_says_what_was_asked_and_predicted_when_and_by_which_version() -> None:
    assert main(["plan", *FIXED, "--save", "mine"]) == 0
    content = yaml.safe_load(Path("recipes/mine.yaml").read_text())
    assert content["summary"].startswith("The best layout of tiny on 2 x NVIDIA H100 80GB HBM3; predicted ")
    assert " tokens/s a GPU (" in content["summary"]
    assert content["summary"].endswith(" GiB of 78.75 GiB on the fullest rank")
    today = datetime.now(UTC).date()
    assert content["source"] == f"planned on {today} by launch {__version__}: launch plan {shlex.join(FIXED)}"


def test_on_the_cpu_the_recipe_says_that_no_speed_is_predicted() -> None:
    words = ("model=tiny", "parallel=fsdp", "cluster.gpus_per_node=2", "train.global_batch_size=2", "train.loss=full")
    assert main(["plan", *words, "--save", "mine"]) == 0
    assert "; speed not predicted, " in yaml.safe_load(Path("recipes/mine.yaml").read_text())["summary"]


def test_a_name_that_is_taken_or_none_is_refused_before_anything_is_searched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(action, "ask", None)
    Path("recipes").mkdir()
    Path("recipes/mine.yaml").write_text("")
    assert main(["plan", *FIXED, "--save", "mine"]) == 4
    assert capsys.readouterr().err.endswith("mine.yaml exists and is not overwritten: choose another name\n")
    assert main(["plan", *FIXED, "--save", "../mine"]) == 2
    assert "error: --save=../mine: a recipe's name must be letters, digits and _ . -" in capsys.readouterr().err


def test_a_secret_among_the_words_is_in_no_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    secret = "hf_" + "a" * 34
    assert main(["plan", *FIXED, "cluster=slurm", f"cluster.setup=['export HF_TOKEN={secret}']", "--save", "mine"]) == 2
    said = capsys.readouterr()
    assert "HF_TOKEN" in said.err
    assert secret not in said.err
    assert not Path("recipes").exists()


def test_where_nothing_fits_no_recipe_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *FIXED, "model=llama3_405b", "--save", "mine"]) == 3
    assert "launch: no recipe is written, because no layout fits\n" in capsys.readouterr().err
    assert not Path("recipes").exists()
