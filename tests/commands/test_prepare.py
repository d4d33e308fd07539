"""`launch prepare` as its user meets it."""

from __future__ import annotations

import fcntl
import importlib
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher import cli
from launcher.data import documents, prepare
from tests.support.chat import turns, write_rows


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with a cache of its own and some text."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("LAUNCH_CACHE", str(tmp_path / "cache"))
    Path("a.txt").write_text("once upon a time\n" * 10_000)
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert cli.main(["prepare", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)["prepare"]


def test_token_ids_are_made_once_found_again_shown_and_removed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = answer(capsys, "data=text", "data.path=a.txt")
    assert first["made"] is True
    assert first["folder"]["tokens"] == 170_000
    assert Path(first["folder"]["path"]).parent == folder / "cache" / "tokens"
    again = answer(capsys, "model=1b", "data=text", "data.path=a.txt", "train.seed=7")
    assert again["made"] is False
    assert again["folder"]["path"] == first["folder"]["path"]
    cli.main(["doctor"])
    place = f"1 folders of {folder}/cache/tokens; `launch prepare --clear` removes them"
    assert place in capsys.readouterr().out
    assert cli.main(["prepare", "--clear"]) == 0
    assert f"removed 1 folders of token ids, 0.2 MiB, from {folder}/cache/tokens" in capsys.readouterr().err
    assert not [path for path in (folder / "cache" / "tokens").iterdir() if path.suffix != ".lock"]


def test_clear_says_what_it_left_to_another_process(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = folder / "cache" / "tokens"
    (place / "0123456789abcdef.node.7.partial").mkdir(parents=True)
    with (place / "0123456789abcdef.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert cli.main(["prepare", "--clear", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["prepare"]["busy"] == 1
    rest = "launch: kept 1 that another process is writing: run `launch prepare --clear` again later\n"
    assert said.err == f"launch: removed 0 folders of token ids, 0.0 MiB, from {place}\n{rest}"


def test_a_full_disk_ends_with_4_and_the_place(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module("rich.progress")  # Before the limit, which would cut its bytecode files off, too.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        assert cli.main(["prepare", "data=text", "data.path=a.txt"]) == 4
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr().err
    assert f"the folder of token ids {folder}/cache/tokens cannot be written: File too large" in said
    assert "LAUNCH_CACHE=FOLDER names another place" in said
    assert not [path for path in (folder / "cache" / "tokens").iterdir() if path.is_dir()]


def test_ctrl_c_leaves_nothing_half(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Iterator[str]:
        yield "a" * prepare._BATCH
        raise KeyboardInterrupt

    monkeypatch.setattr(documents, "documents", interrupted)
    assert cli.main(["run", "model=tiny", "data=text", "data.path=a.txt"]) == 130
    assert not [path for path in (folder / "cache" / "tokens").iterdir() if path.is_dir()]
    assert not Path("runs").exists()


def test_bad_data_ends_the_run_before_anything_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.txt").write_bytes(b"fine" * 40_000 + b"\xff")  # Past what the check looks at.
    assert cli.main(["run", "model=tiny", "data=text", "data.path=a.txt"]) == 2
    assert "not UTF-8 text" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_what_has_no_text_needs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prepare", "data=synthetic"]) == 0
    assert "nothing to tokenize: data=synthetic has no text" in capsys.readouterr().err


def test_a_job_needs_a_folder_that_its_nodes_see(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LAUNCH_CACHE")
    words = ("cluster=slurm", "data=text", "data.path=a.txt")
    assert cli.main(["prepare", *words]) == 2
    assert "cluster.shared_folder=/path/that/nodes/see" in capsys.readouterr().err
    made = answer(capsys, *words, "cluster.shared_folder=shared")
    assert Path(made["folder"]["path"]).parent == folder / "work" / "shared" / "cache" / "tokens"


def test_conversations_are_kept_with_their_marks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rows(folder / "chat.jsonl", [turns("hello", "good day"), turns("only a question")])
    words = ("data=chat", f"data.path={path}")
    made = answer(capsys, *words)["folder"]
    assert (made["documents"], made["left_out"]) == (1, {"without an assistant's turn": 1})
    ids = (Path(made["path"]) / "tokens.bin").read_bytes()
    marks = (Path(made["path"]) / "trained.bin").read_bytes()
    assert bytes(token for token, mark in zip(ids, marks, strict=True) if mark).strip() == b"good day"
    assert answer(capsys, *words, "data.train_on=all")["folder"]["path"] != made["path"]
    template = folder / "own.jinja"
    template.write_text("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}")
    first = answer(capsys, *words, f"data.template={template}")["folder"]["path"]
    template.write_text("{% for m in messages %}{% generation %}{{ m.content }}!{% endgeneration %}{% endfor %}")
    assert answer(capsys, *words, f"data.template={template}")["folder"]["path"] != first


_NO_FILE = (
    "no file matches; data=text reads text, or rows of JSON lines, JSON, CSV, Parquet or Arrow with the column "
    "data.column"
)
_NO_TOKENIZER = "no such folder on this machine, and a tokenizer on the Hub is OWNER/NAME or OWNER/NAME@REVISION"


@pytest.mark.parametrize(
    ("words", "path", "rule"),
    [
        (["data.path=/nope"], "data.path", _NO_FILE),
        (["data.path=a.txt", "data.tokenizer=/nope"], "data.tokenizer", _NO_TOKENIZER),
    ],
)
def test_data_that_cannot_be_used_are_an_error_of_the_configuration(
    words: list[str], path: str, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["prepare", "--json", "data=text", *words]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "invalid"
    [error] = document["errors"]
    assert (error["path"], error["rule"]) == (path, rule)
    assert {"data.tokenizer=bytes", "data=synthetic data.path=null"} & {*error["way_out"]}


def test_data_without_a_setting_to_blame_are_an_error_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.jsonl").write_text('{"text": ""}\n')
    assert cli.main(["prepare", "--json", "data=text", "data.path=a.jsonl"]) == 2
    [error] = json.loads(capsys.readouterr().out)["errors"]
    assert error["rule"] == "data.path=a.jsonl: nothing to train on: it contains no text"
