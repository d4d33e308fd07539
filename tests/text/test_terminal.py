"""What acts on a terminal never reaches it, and an answer that cannot be given is said with an exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.base import terminal
from launcher.cli import VERBS, main
from launcher.config.catalog import Catalog
from launcher.spec.parse import to_dict
from tests.support.helpers import make_spec

ACTING = "\x1b[2J\x07\r\x7f\x9b1m\u061c\u200e\u202e\u2066\u2028\u2029\udcff"
WRITTEN_OUT = r"\x1b[2J\x07\x0d\x7f\x9b1m\u061c\u200e\u202e\u2066\u2028\u2029\udcff"

LONG = "a" * 5000
WORDS = {
    "run": [f"run.directory=/{LONG}", "model=tiny", "train.steps=1"],
    "check": [f"model=/{LONG}"],
    "show": [f"data.path=/{LONG}", "data=text"],
    "plan": [f"model=/{LONG}"],
    "rehearse": [f"model=/{LONG}"],
    "prepare": [f"data.path=/{LONG}", "data=text"],
    "status": [f"/{LONG}"],
    "watch": [f"/{LONG}"],
    "logs": [LONG],
    "compare": [f"/{LONG}", LONG],
    "why": [f"/{LONG}"],
    "report": [f"/{LONG}"],
    "cancel": [f"/{LONG}"],
    "resume": [LONG],
    "doctor": ["--write", LONG],
    "import": ["deepspeed", f"/{LONG}"],
    "recipe": ["show", f"/{LONG}.yaml"],
    "completion": [LONG],
}
"""Words with a path that no system takes, for each verb."""

ANSWERS = {
    **{key: ["model=tiny"] for key in ("check", "show")},
    **{
        key: ["--help"]
        for key in (
            *(
                "status",
                "watch",
                "logs",
                "why",
                "compare",
                "report",
                "cancel",
                "resume",
                "doctor",
                "run",
                "prepare",
                "rehearse",
            ),
        )
    },
    "plan": ["model=tiny", "hardware=h100_80g", "cluster.gpus_per_node=1", "parallel=ddp"],
    "import": ["deepspeed", "/dev/null", "--json"],
    "recipe": ["show", "tiny_cpu"],
    "completion": ["bash"],
}
"""Words with which each verb prints something."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def test_what_acts_is_written_out_and_nothing_else() -> None:
    assert terminal.visible(f"a\tb\n{ACTING}é漢{chr(0x1F600)}") == f"a\tb\n{WRITTEN_OUT}é漢{chr(0x1F600)}"
    assert terminal.coloured(f"\r\x1b[32mgreen\x1b[0m{ACTING}") == f"\r\x1b[32mgreen\x1b[0m{WRITTEN_OUT}".replace(
        r"\x07\x0d", "\\x07\r"
    )
    assert terminal.in_html("<b>\u202e") == r"&lt;b&gt;\u202e"
    assert json.loads(terminal.as_json({"a": ACTING})) == {"a": ACTING}
    assert terminal.as_json({"a": ACTING}).isprintable()


def test_no_file_of_anyones_acts_on_the_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Catalog, "recipes", (folder / "recipes",))  # The shipped ones take a second.
    acting = ACTING.replace("\udcff", "")
    (folder / "recipes").mkdir()
    quoted = json.dumps(acting)
    (folder / "recipes" / "evil.yaml").write_text(f"schema: 1\nsummary: {quoted}\nchoose: {{model: {quoted}}}\n")
    (folder / "recipes" / f"n{acting}.yaml").write_text("schema: 1")
    (folder / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 1}, f"key{acting}": acting}))
    (folder / "args.sh").write_text(f"x.py --num-layers {acting}")
    (folder / "config.json").write_text(json.dumps({"model_type": acting}))
    run = folder / "runs" / f"r{acting}"
    (run / "logs" / "ranks" / "x_1" / "attempt_0" / "0").mkdir(parents=True)
    (run / "logs" / "ranks" / "x_1" / "attempt_0" / "0" / "stdout.log").write_text(f"line {acting}\n")
    (run / "spec.json").write_text(json.dumps(to_dict(make_spec("model=tiny"))))
    (run / "state.json").write_text(json.dumps({"state": "failed", "reason": acting}))
    seen = ""
    for words in (
        ["recipe", "list"],
        ["recipe", "show", "evil"],
        ["check", "recipe=evil"],
        ["check", f"model=x{acting}"],
        ["import", "deepspeed", "ds.json"],
        ["import", "deepspeed", "ds.json", "--json"],
        ["import", "megatron", "args.sh"],
        ["import", "hf", "config.json"],
        ["status"],
        ["logs", "--all"],
        ["logs", "--json"],
        [acting],
    ):
        main(words)
        out, err = capsys.readouterr()
        seen += out + err
        assert terminal.visible(out + err) == out + err, words
        assert out + err
    assert WRITTEN_OUT.removesuffix(r"\udcff") in seen


def test_every_verb_is_tried() -> None:
    assert set(WORDS) == set(ANSWERS) == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_a_path_that_is_too_long_is_an_answer(verb: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, *WORDS[verb]]) in (2, 4)
    err = capsys.readouterr().err
    assert "File name too long" in err or err.startswith(("error: ", "error:\n", "launch: ")), err[:300]


@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_that_is_gone_is_said(verb: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    assert main([verb, *ANSWERS[verb]]) == 2
    assert "error: the working folder: it was removed or moved: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_a_full_disk_behind_stdout_is_said(
    verb: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main([verb, *ANSWERS[verb]]) == 4
        monkeypatch.undo()
    text = "launch: the output cannot be written to stdout: No space left on device\n"
    assert capsys.readouterr().err.endswith(text)


@pytest.mark.parametrize("verb", VERBS)
def test_a_closed_stdout_is_said_before_anything_is_done(
    verb: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    status = main([verb, *ANSWERS[verb]])
    monkeypatch.undo()
    assert status == 4
    assert capsys.readouterr().err.startswith("launch: stdout is closed: to discard the output")


def test_streams_that_are_closed_or_full_end_with_a_status_and_no_traceback(folder: Path) -> None:
    launch = f"{sys.executable} -m launcher"
    script = f"""
        {launch} completion bash >&-; echo $?
        {launch} completion bash >/dev/full; echo $?
        {launch} recipe --help >/dev/full; echo $?
        {launch} completion nope 2>&-; echo $?
        {launch} completion nope 2>/dev/full; echo $?
        {launch} __complete zsh mod >&-; echo $?
        {launch} completion bash <&- | head -1
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:6] == ["4", "4", "4", "2", "2", "0"]
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_names_are_matched_to_their_end(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["recipe", "save", "x\n", "model=tiny"], ["check", "model=a/b\n"], ["check", "train.steps=1\n"]):
        assert main(words) == 2
        assert "error" in "".join(capsys.readouterr())
    assert not (folder / "recipes").exists()
