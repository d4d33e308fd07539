"""data=chat as its user meets it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import launcher
from launcher import cli
from tests.support.chat import turns, write_rows, write_tokenizer

TINY = ("model=tiny", "data=chat", "data.path=talk.jsonl", "train.sequence_length=64", "cluster.gpus_per_node=1")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAUNCH_CACHE", str(tmp_path / "cache"))
    write_rows(Path("talk.jsonl"), [turns("a?", "b\u00e4"), {"messages": []}, turns("long " * 20, "c")])
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert cli.main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_check_shows_samples_with_what_of_them_is_trained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", *TINY, "data.preview=5"]) == 0
    said = capsys.readouterr().out
    shown = (
        "row 1: 26 tokens; 5 are trained, in \u27e6 \u27e7\nuser: a?\u21b5\n\u21b5\nassistant: \u27e6b\u00e4\u21b5\n"
    )
    assert shown + "\u21b5\n\u27e7\n" in said
    assert "row 3: 65 tokens, 57 more are truncated; 0 are trained" in said
    preview = answer(capsys, "check", *TINY, "data.preview=1")["data"]["preview"]
    assert [(each["row"], each["trained"], each["cut"]) for each in preview] == [(1, 5, 0)]
    tokens = preview[0]["tokens"]
    assert "".join(token["text"] for token in tokens if token["trained"]) == "b\u00e4\n\n"
    assert tokens[0] == {"id": ord("u"), "text": "u", "trained": False}


def test_a_tokenizer_without_a_template_gets_a_shipped_one_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    [warning] = [each for each in answer(capsys, "check", *TINY)["warnings"] if each["path"] == "data.template"]
    assert warning == {
        "path": "data.template",
        "found": None,
        "rule": "data.tokenizer=bytes has no chat template, so the shipped template plain is used",
        "way_out": ["data.template=plain", "data.template=chatml"],
    }
    named = answer(capsys, "check", *TINY, "data.template=plain")["warnings"]
    assert not [each for each in named if each["path"] == "data.template"]


def test_prepare_counts_the_rows_that_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prepare", *TINY]) == 0
    assert "148 tokens of 2 conversations, 1 without messages left out  " in capsys.readouterr().out
    assert answer(capsys, "prepare", *TINY)["prepare"]["folder"]["left_out"] == {"without messages": 1}


def test_another_template_or_other_marks_are_other_token_ids(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.jinja").write_text("{{ messages[0].content }}")
    asked = [[], ["data.template=own.jinja"], ["data.train_on=all"], ["data.template=own.jinja"], ["data.preview=3"]]
    asked[1].append("data.train_on=all")
    asked[3].append("data.train_on=all")
    made = []
    for number, words in enumerate(asked):
        if number == 3:
            Path("own.jinja").write_text("{{ messages[1].content }}")
        made.append(answer(capsys, "prepare", *TINY, *words)["prepare"]["made"])
    assert made == [True, True, True, True, False]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.column=foo"], "data.column=foo: row 1 has no such column; it has messages"),
        (["data.template=foo"], "data.template=foo: it is neither a shipped template nor a readable file"),
        (
            ["data.template=."],
            "data.template=.: it is neither a shipped template nor a readable file: Is a directory",
        ),
    ],
)
def test_what_cannot_be_used_ends_before_anything_is_recorded(
    words: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*TINY, *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (folder / "runs").exists()


def test_a_job_whose_data_are_elsewhere_has_no_preview_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=tiny", "hardware=h100_80g", "cluster=slurm", "data=chat", "data.path=/nowhere/talk.jsonl"]
    assert cli.main(["check", *words, "data.preview=1"]) == 0
    assert "no preview, because this machine cannot read the job's data: data.path=/nowhere/talk.jsonl" in (
        capsys.readouterr().err
    )


def test_an_argument_of_megatron_that_the_marks_set_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["parallel=tp", "hardware=h100_80g", "cluster.gpus_per_node=2", "--no-native"]
    assert cli.main(["check", *TINY, *words, "+backend.extra.calculate-per-token-loss=false"]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "data.source=chat sets it: the loss is averaged over the trained tokens" in said


def _refused(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert cli.main([*words, "--json"]) == 2
    [error] = json.loads(capsys.readouterr().out)["errors"]
    return error


def test_a_folder_without_a_tokenizer_is_a_finding_with_a_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    error = _refused(capsys, "check", *TINY, "data.tokenizer=./empty")
    assert (error["path"], error["found"]) == ("data.tokenizer", "./empty")
    assert error["rule"].startswith("it cannot be read as a tokenizer: ")
    assert error["way_out"] == ["data.tokenizer=bytes"]


@pytest.mark.parametrize(
    ("name", "content", "rule"),
    [
        ("tokenizer_config.json", b"{", "it cannot be read: Expecting property name"),
        ("chat_template.jinja", b"\xff", "it cannot be read: it is not UTF-8 text"),
    ],
)
def test_a_damaged_file_of_a_tokenizer_is_a_finding(
    name: str, content: bytes, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tokenizer(Path("words"))
    Path("words/chat_template.jinja").unlink()
    Path("words", name).write_bytes(content)
    error = _refused(capsys, "check", *TINY, "data.tokenizer=words")
    assert (error["path"], error["found"]) == ("data.tokenizer", f"words/{name}")
    assert error["rule"].startswith(rule)
    assert error["way_out"] == ["data.tokenizer=bytes"]
    assert launcher.check([*TINY, "data.tokenizer=words"]).verdict == "invalid"


def test_what_the_split_leaves_out_is_said_and_the_split_is_no_idle_setting(capsys: pytest.CaptureFixture[str]) -> None:
    Path("talks").mkdir()
    for name in ("train-1", "train-2", "test"):
        write_rows(Path("talks", f"{name}.jsonl"), [turns("a?", "b")])
    words = [*TINY[:2], "data.path=talks", *TINY[3:]]
    assert cli.main(["check", *words, "data.split=test"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "data: 1 file of JSON lines (messages), excluding files of other splits (2 of train), 1 row" in said
    assert "data.split" not in said


def test_a_preview_of_a_run_for_another_machine_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=tiny", "hardware=h100_80g", "cluster.gpus_per_node=8", "data=chat", "data.path=/nowhere/talk.jsonl"]
    assert cli.main(["check", *words, "data.preview=1"]) == 0
    assert "no preview, because this machine cannot read the job's data: data.path=/nowhere" in capsys.readouterr().err


def test_a_preview_without_the_package_that_reads_the_tokenizer_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tokenizer(Path("words"))
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert cli.main(["check", *TINY, "data.tokenizer=words", "model.vocab_size=512", "data.preview=1"]) == 0
    why = "the package transformers is not installed for this Python"
    assert f"no preview, because this machine cannot read the job's data: {why}" in capsys.readouterr().err
