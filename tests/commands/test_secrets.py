"""Secrets travel by the name of a variable: never in a setting, a message or a record."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from launcher.cli import main
from launcher.preflight import findings
from launcher.spec.parse import known_keys
from tests.support import resuming
from tests.support.helpers import make_spec
from tests.support.secrets import HEX, KNOWN, LETTERS, NAMED
from tests.support.training import SMALL


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HF_TOKEN", "DB_PASSWORD", "aws_secret_access_key"])
def test_a_secret_given_as_a_setting_is_refused_and_not_repeated(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=tiny", f"cluster.environment.{name}=hunter2"]
    assert main(["check", *words]) == 2
    said = capsys.readouterr()
    assert "hunter2" not in said.out + said.err
    assert f"try  cluster.pass_environment=[{name}]" in said.out + said.err
    (error,) = findings.errors(make_spec(*words))
    assert (error.path, error.found) == (f"cluster.environment.{name}", "(not shown)")


def test_a_name_that_a_shell_would_run_is_no_variable() -> None:
    (error,) = findings.errors(make_spec("model=tiny", "cluster.environment={a b:c}"))
    assert error.rule == "a variable's name has only letters, digits and _, and no digit first: remove this one"


def test_an_ordinary_variable_is_no_secret() -> None:
    assert not findings.errors(make_spec("model=tiny", "cluster.environment.NCCL_DEBUG=INFO"))
    assert not findings.errors(make_spec("model=tiny", "cluster.environment.KEYBOARD=us"))


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
    names_it_alone = words[0] == "--hf-token"  # From Python 3.13 on argparse does not repeat the word behind it.
    assert names_it_alone or "(not shown)" in said.out + said.err


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
    assert "script=train.py: line 2 contains a Hugging Face token, and the run keeps a copy" in said
    assert "try cluster.pass_environment=[HF_TOKEN]" in said
    assert _files(tmp_path) == [script]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    resuming.by_nobody(monkeypatch, steps=[])
    return tmp_path


PARTS = ("hunter2", "aHVudGVyMjpodW50ZXIy", LETTERS[:20], HEX[:30])
"""What is secret in the texts that hold a secret."""

WAYS = ("{key}={text}", "{key}=[{text}]", "{key}={{a:{text}}}", "{key}='{text}'", "{key}=['{text}']", "{key}=['{text}'")
"""A text as it is typed: bare, in a list, quoted, or with a bracket that never closes."""

SLURM = ("cluster=slurm", "hardware=h100_80g")


def _leaks(text: str) -> list[str]:
    return [part for part in PARTS if part in text]


@given(
    key=st.sampled_from([
        *sorted(known_keys()),
        "cluster.environment.A",
        "+backend.extra.a",
        "cluster.setup",
        "nosuch",
    ]),
    text=st.sampled_from([*KNOWN, *NAMED]),
    way=st.sampled_from(WAYS),
    verb=st.sampled_from([("check",), ("check", "--json"), ("show",), ("show", *SLURM), ("run",)]),
)
@example(key="cluster.setup", text="curl -u me:hunter2 https://a.org", way="{key}=[{text}]]", verb=("check",))
@example(key="cluster.setup", text="curl -u me:hunter2 https://a.org", way="{key}=[{text}]", verb=("show", *SLURM))
@example(key="hardware.title", text=KNOWN[0], way="{key}={text}", verb=("check",))
@example(key="cluster.setup", text="curl https://me:hunter2@a.org/?a=b&c={{d}}", way="{key}=[{text}]", verb=("check",))
@settings(max_examples=40, deadline=None)
def test_a_secret_of_any_known_form_in_any_key_is_in_no_output_and_no_file(
    key: str, text: str, way: str, verb: tuple[str, ...]
) -> None:
    word = way.format(key=key, text=text.replace("'", "\\'") if "'" in way else text)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as place:
        patch.chdir(place)
        patch.setenv("XDG_STATE_HOME", f"{place}/state")
        resuming.by_nobody(patch, steps=[])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main([*verb, *SMALL, "hardware=cpu", "cluster.gpus_per_node=1", word])
        assert not _leaks(out.getvalue() + err.getvalue())
        for path in _files(Path(place)):
            assert not _leaks(path.read_text(errors="replace")), path


@pytest.mark.parametrize("name", ["PGPASS", "MYSQL_PWD", "SSHPASS", "PGPASSWORD"])
def test_a_name_that_ends_like_a_password_s_is_a_secret_s(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "model=tiny", f"cluster.environment.{name}=hunter2"]) == 2
    said = capsys.readouterr()
    assert "hunter2" not in said.out + said.err
    assert f"try  cluster.pass_environment=[{name}]" in said.out + said.err


SAID = "cannot reach https://me:hunter2@db.example.org, nor by curl -u me:hunter2 https://a.org, PGPASS=hunter2"


def test_no_page_and_no_table_repeats_a_secret_that_a_run_has_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, "hardware=cpu", "cluster.gpus_per_node=1", "run.name=a"]) == 0
    run = folder / "runs" / "a"
    line = {"time": 1.0, "kind": "spike", "step": 1, "text": SAID}
    (run / "events.jsonl").write_text(json.dumps(line) + "\n")
    (run / "state.json").write_text(json.dumps({"state": "failed", "time": 1.0, "reason": SAID}))
    (run / "not_submitted.json").write_text(json.dumps({"reason": SAID}))
    plan = json.loads((run / "plan.json").read_text())
    (run / "plan.json").write_text(json.dumps({**plan, "overrides": [f"cluster.setup=[{SAID}]"]}))
    (run / "changes.json").write_text(
        json.dumps({"changes": [{"time": 1.0, "step": 1, "overrides": [f"a={SAID}"], "changes": [], "before": "x"}]})
    )
    (run / "logs" / "error.rank0.json").write_text(
        json.dumps({"rank": 0, "message": SAID, "traceback": f"ValueError: {SAID}", "time": 1.0})
    )
    capsys.readouterr()
    for verb in ("status a", "status a --json", "watch a --once", "why a", "why a --json", "report a -o a.html",
                 "report a a -o b.html", "compare a a", "compare a a --json"):  # fmt: skip
        main(verb.split())
        said = capsys.readouterr()
        assert not _leaks(said.out + said.err), verb
    pages = [*folder.glob("*.html")]
    assert pages
    assert not any(_leaks(page.read_text()) for page in pages)
