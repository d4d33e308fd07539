"""No command waits for ever for a file that is none, and each says which file it was and what it is."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from launcher.base import files
from launcher.cli import main
from launcher.rundir import home
from tests.support.helpers import ROOT
from tests.support.odd_files import ODD, no_longer_than
from tests.support.recorded_runs import line, recorded

SECONDS = 120
"""Far beyond what any of these takes on a slow machine: what hangs, hangs for ever."""

IN_A_RUN = (
    *("spec.json", "plan.json", "job.json", "home.json", "state.json", "submission.json", "attempts.json"),
    *("changes.json", "not_submitted.json", "memory.json", "tokens.json", "metrics.jsonl", "events.jsonl"),
    *("memory.jsonl", "oom.json", "run.lock.yaml", "alive", "logs/node.err", "logs/node.out"),
    *("logs/error.rank0.json", "logs/outcome.json", "logs/saving_paused.json", "checkpoints/step-1/state.json"),
)
READING = (["status"], ["watch", "bad", "--once"], ["why", "bad"], ["logs", "bad"], ["compare", "bad", "good"])

TYPED: Sequence[tuple[str, Sequence[str]]] = (
    ("ds.json", ("import", "deepspeed", "ds.json")),
    ("config.json", ("import", "hf", "config.json")),
    ("train.sh", ("import", "megatron", "train.sh")),
    ("points.jsonl", ("check", "--points", "points.jsonl")),
    ("ds.json", ("check", "model=tiny", "--deepspeed", "ds.json")),
    ("recipes/mine.yaml", ("check", "recipe=mine")),
    ("mine.yaml", ("recipe", "show", "mine.yaml")),
    ("mine.yaml", ("run", "--from", "mine.yaml")),
    ("conf/model/mine.yaml", ("check", "model=mine")),
    ("conf/cluster/local.yaml", ("check", "model=tiny")),
    ("own/config.json", ("check", "model=./own")),
    ("rows.jsonl", ("check", "model=tiny", "data=text", "data.path=rows.jsonl")),
    ("rows.parquet", ("check", "model=tiny", "data=text", "data.path=rows.parquet")),
    ("ids.bin", ("check", "model=tiny", "data=tokens", "data.path=ids.bin")),
    ("chat.jinja", ("check", "model=tiny", "data=chat", "data.path=talk.jsonl", "data.template=chat.jinja")),
    ("words/tokenizer.json", ("check", "model=tiny", "data=text", "data.path=text.txt", "data.tokenizer=words")),
    ("train.py", ("run", "script=train.py", "model=tiny")),
    ("measured.jsonl", ("plan", "model=tiny", "hardware=h100", "--measurements", "measured.jsonl")),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("odd", ODD)
def test_no_file_of_a_run_makes_a_verb_wait_for_ever_or_hides_another_run(
    odd: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(folder / "runs" / "good", steps=[line(1, 2.0)], now="finished")
    run = recorded(folder / "runs" / "bad", steps=[line(1, 2.0)], now="failed")
    home.write(run, run)
    for name in IN_A_RUN:
        path, kept = run / name, folder / "kept"
        path.parent.mkdir(parents=True, exist_ok=True)
        there = path.exists()
        if there:
            shutil.move(path, kept)
        ODD[odd](path)
        for words in READING:
            with no_longer_than(SECONDS):
                status = main(list(words))
            out, err = capsys.readouterr()
            assert status in (0, 2, 4, 5), (name, words, err)
            assert words[0] != "status" or "good" in out, (name, words)
        path.rmdir() if odd == "a folder" else path.unlink()
        Path(f"{path}.pipe").unlink(missing_ok=True)
        if there:
            shutil.move(kept, path)


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.jsonl", "spec.json", "job.json"])
def test_status_says_which_file_of_a_run_is_none_and_what_it_is(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded(folder / "runs" / "bad", now="finished")
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    with no_longer_than(SECONDS):
        assert main(["status", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["runs"]
    assert f"{name}: it is a named pipe, but only regular files are read" in row["reason"]


@pytest.mark.parametrize(
    ("name", "words"), TYPED, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
@pytest.mark.parametrize("odd", ["a named pipe", "a device"])
def test_a_file_that_a_word_names_is_refused_where_it_is_none(
    odd: str, name: str, words: Sequence[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "talk.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    (folder / "text.txt").write_text("some text\n")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    ODD[odd](path)
    with no_longer_than(SECONDS):
        status = main([*words])
    out, err = capsys.readouterr()
    assert status in (2, 4), out + err
    said = " ".join((out + err).split())
    assert path.name in said or path.stem in said, said


@pytest.mark.parametrize("name", ["recipes", "conf", "runs", "rows"])
def test_a_folder_that_is_a_link_to_itself_is_as_one_that_is_not_there(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ODD["a link to itself"](folder / name)
    for words in (
        ("recipe", "list"),
        ("check", "model=tiny"),
        ("check", "model=tiny", "data=text", f"data.path={name}"),
        ("check", f"model=./{name}"),
        ("check", "model=tiny", f"save.load=./{name}"),
        ("status",),
        ("check", "recipe=none"),
    ):
        assert main([*words]) in (0, 2, 3, 4), words
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("words", ["data=text data.path=~nobody/x", "model=~nobody/x", "save.load=~nobody/x"])
def test_a_home_of_nobody_is_a_place_that_is_not_there(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "model=tiny", *words.split()])
    out, err = capsys.readouterr()
    assert "~nobody/x" in out + err


@cache
def _calls() -> list[tuple[Path, ast.Call]]:
    """Every call in the source of ``launcher/``, with its file."""
    paths = sorted((ROOT / "launcher").rglob("*.py"))
    return [
        (path, node) for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
    ]


def test_no_way_of_python_to_follow_links_is_used_that_raises_on_some() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {ast.unparse(node)}"
        for path, node in _calls()
        if isinstance(node.func, ast.Attribute)
        and node.func.attr in ("resolve", "expanduser")
        and not node.args
        and path != ROOT / "launcher" / "base" / "files.py"
    ]
    assert not found, "files.real and files.expanded raise nothing"


def test_what_the_shell_has_opened_for_a_command_is_read(folder: Path) -> None:
    launch = f"{sys.executable} -m launcher"
    for command in (
        f'{launch} import deepspeed <(echo \'{{"zero_optimization": {{"stage": 2}}}}\') --json',
        f'echo \'{{"zero_optimization": {{"stage": 2}}}}\' | {launch} import deepspeed /dev/stdin --json',
    ):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert "parallel=zero2" in json.loads(done.stdout)["import"]["overrides"]


@pytest.mark.parametrize("odd", ODD)
def test_only_a_regular_file_is_opened_and_what_else_it_is_is_said(odd: str, folder: Path) -> None:
    path = folder / "a"
    ODD[odd](path)
    with no_longer_than(SECONDS), pytest.raises(OSError) as found:  # noqa: PT011 - The words follow.
        files.read_bytes(path)
    words = {"a folder": "Is a directory", "a link to itself": "symbolic links", "a link to a pipe": "a named pipe"}
    assert words.get(odd, odd) in str(found.value)
    assert str(path) in str(found.value)
    assert files.end_of(path, 10) == ""


def test_a_file_that_is_too_large_is_read_no_further_than_its_limit(folder: Path) -> None:
    path = folder / "a"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # A hole of a terabyte, which takes no place on disk.
    with pytest.raises(files.Refused, match="it is larger than 1 MiB"):
        files.read_text(path)
    assert len(files.end_of(path, 10)) == 10


SHIPPED, KERNEL, OWN = "a file of this package", "a file of the kernel", "a file that this user's process has just made"
ELSEWHERE = {
    "base/files.py": "the mechanism itself",
    "charts/page.py": SHIPPED,
    "commands/completion.py": SHIPPED,
    "cli/completion/vocabulary.py": SHIPPED,
    "spec/bounds.py": SHIPPED,
    "spec/edit.py": SHIPPED,
    "preflight/plan.py": SHIPPED,
    "job/memory.py": KERNEL,
    "base/machine.py": KERNEL,
    "rundir/provenance.py": KERNEL,
    "base/process.py": KERNEL,
    "worker/metrics.py": KERNEL,
    "worker/observe/__main__.py": "standard input, which the launcher writes to",
    "worker/out_of_memory.py": KERNEL,
    "submission/stacks.py": f"{KERNEL}, and {OWN}",
    "data/prepare.py": OWN,
    "worker/beat.py": OWN,
    "worker/files.py": OWN,
    "base/terminal.py": "the null device, in place of a stream that is closed",
    "base/registry.py": "the metadata of installed packages, which Python reads as well",
    "job/run_script.py": "it runs in the job's own Python, without this package",
    "worker/megatron/validate.py": "its standard input, and the source of Megatron-LM",
}
"""Files of ``launcher/`` that read without ``launcher.base.files``, with the reason."""


def test_every_reader_of_a_file_goes_through_the_one_mechanism() -> None:
    package = ROOT / "launcher"
    found: dict[str, list[str]] = {}
    for path, node in _calls():
        if _reads(node):
            found.setdefault(str(path.relative_to(package)), []).append(f"{node.lineno}: {ast.unparse(node)}")
    new = {name: calls for name, calls in found.items() if name not in ELSEWHERE}
    assert not new, "read by launcher.base.files.opened, read_text, read_bytes, load_json or last_lines, or say why not"
    assert set(found) == set(ELSEWHERE), "these read nothing by themselves any more"


def _reads(call: ast.Call) -> bool:
    """True for a call that opens a file for reading, or reads one whole."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id == "open" and _is_reading(call, 1)
    if not isinstance(function, ast.Attribute):
        return False
    owner = function.value.id if isinstance(function.value, ast.Name) else ""
    if owner in ("files", "regular"):
        return False
    if owner == "os" and function.attr == "open":
        return "O_RDONLY" in ast.unparse(call)
    known = (owner, function.attr) in (("json", "load"), ("gzip", "open"))
    return known or function.attr in ("read_text", "read_bytes") or (function.attr == "open" and _is_reading(call, 0))


def _is_reading(call: ast.Call, place: int) -> bool:
    modes = [*call.args[place : place + 1], *(each.value for each in call.keywords if each.arg == "mode")]
    return not modes or "r" in str(getattr(modes[0], "value", "r"))
