"""Secrets travel by the name of a variable: never in a setting, a message or a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.cli import main
from launcher.preflight import assess
from tests.support.helpers import make_spec


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HF_TOKEN", "DB_PASSWORD", "aws_secret_access_key"])
def test_a_secret_given_as_a_setting_is_refused_and_not_repeated(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=tiny", f"cluster.environment.{name}=hunter2"]
    assert main(["check", *words]) == 2
    said = capsys.readouterr()
    assert "hunter2" not in said.out + said.err
    assert f"try  cluster.pass_environment=[{name}]" in said.out + said.err
    (error,) = assess.errors(make_spec(*words))
    assert (error.path, error.found) == (f"cluster.environment.{name}", "(not shown)")


def test_a_name_that_a_shell_would_run_is_no_variable() -> None:
    (error,) = assess.errors(make_spec("model=tiny", "cluster.environment={a b:c}"))
    assert error.rule == "a variable's name is letters, digits and _, and begins with no digit: take this one out"


def test_an_ordinary_variable_is_no_secret() -> None:
    assert not assess.errors(make_spec("model=tiny", "cluster.environment.NCCL_DEBUG=INFO"))
    assert not assess.errors(make_spec("model=tiny", "cluster.environment.KEYBOARD=us"))


TOKEN = "hf_" + "aB3dE6gH9j" * 4


@pytest.mark.parametrize(
    "words",
    [
        ["+cluster.environment.FOO=" + TOKEN],
        ["cluster.environment={HF_TOKEN:hunter2,B:[1]}"],
        ["cluster.environment.LOGIN=hun'ter2"],
        ["cluster.enviroment.HF_TOKEN=hunter2"],
        ["HF_TOKEN=hunter2"],
        ["--hf-token", "hunter2"],
        [TOKEN],
        ["model=" + TOKEN],
        ["cluster.nodes=" + TOKEN],
        ["run.name=" + TOKEN],
        ["tracking.uri=https://me:hunter2@example.org"],
        ["tracking=mlflow", "tracking.uri=https://me:hunter2@example.org"],
        ["parallel=zero2", "+backend.extra.wandb.api_key=hunter2"],
        ["cluster=slurm", "cluster.setup=[wandb login hunter2x9, export DB_PASS=hunter2]"],
        ["script=train.py", "--", "--api-key", "hunter2x9"],
        ["recipe=https://me:hunter2@example.org/a.yaml"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_no_error_repeats_a_secret(words: list[str], form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "model=tiny", *form, *words]) == 2
    said = capsys.readouterr()
    assert "hunter2" not in said.out + said.err
    assert "ter2" not in said.out + said.err
    assert TOKEN not in said.out + said.err
    assert "(not shown)" in said.out + said.err


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "words",
    [
        ["run", "cluster.setup=[]", "--", TOKEN],
        ["run", "save.every=2", "--from=" + TOKEN],
        ["-m", "train.seed=1,2", "tracking.project=" + TOKEN, "tracking=mlflow"],
        ["recipe", "save", "mine", "+cluster.environment.A=" + TOKEN],
        ["recipe", "save", "mine", "tracking.uri=https://me:hunter2@example.org"],
        ["recipe", "lock", "cluster=slurm", "cluster.setup=['export HF_TOKEN=hunter2']", "cluster.setup=[]"],
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_nothing_is_written_where_a_file_would_hold_a_secret(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    model = [] if words[0] == "recipe" and words[1] == "save" else ["model=tiny"]
    at = words.index("--") if "--" in words else len(words)
    assert main([*words[:at], *model, *words[at:]]) == 2
    said = capsys.readouterr()
    assert TOKEN not in said.out + said.err
    assert "hunter2" not in said.out + said.err
    assert _files(tmp_path) == []


def test_a_script_with_a_token_in_it_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    script = tmp_path / "train.py"
    script.write_text(f"import os\nos.environ['HF_TOKEN'] = '{TOKEN}'\n")
    assert main(["run", "script=train.py"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "script=train.py: line 2 holds a Hugging Face token, and the run keeps a copy" in said
    assert "try cluster.pass_environment=[HF_TOKEN]" in said
    assert _files(tmp_path) == [script]
