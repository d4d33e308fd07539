"""Completion in the shells themselves: a person types, presses Tab, and the line is what they meant."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.cli import main

_BEGINNING_OF_LINE, _ALL = "\x01", "\x1b*"
_PATIENCE_S = 300
_AT_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.dup2(0, 1)
os.dup2(0, 2)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""A program that gives its own standard input to a shell as its terminal; a fork of pytest itself may deadlock."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a conf/, a recipe, a run, and a file with a space in its name."""
    for name in ("conf/model/ours_9b.yaml", "recipes/our_recipe.yaml", "runs/first/spec.json", "data/two words.txt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("HISTFILE", "")
    return tmp_path


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


class Terminal:
    """A shell at a terminal of its own."""

    def __init__(self, *command: str) -> None:
        self.fd, theirs = pty.openpty()
        self.process = subprocess.Popen([sys.executable, "-c", _AT_TERMINAL, *command], stdin=theirs)
        os.close(theirs)
        self.said = ""

    def line(self, keys: str) -> str:
        """Type, then have the shell print the words of the line as it stands in place of running it."""
        mark = f"{time.monotonic_ns()}"
        self.type(f"{keys}{_BEGINNING_OF_LINE}printf '%s|' '{mark[:3]}''{mark[3:]}' \r")
        while not re.search(rf"{mark}\|.*\|", self.said):
            ready, _, _ = select.select([self.fd], [], [], _PATIENCE_S)
            assert ready, f"the shell says no more after {self.said[-2000:]!r}"
            self.said += os.read(self.fd, 65536).decode(errors="replace")
        return self.said.rpartition(f"{mark}|")[2].rpartition("|")[0]

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def close(self) -> None:
        os.close(self.fd)
        self.process.wait(_PATIENCE_S)


@pytest.fixture
def bash(folder: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    (folder / "rc").write_text(script("bash", capsys) + "\nPS1='$ '\n")
    shell = Terminal("bash", "--noprofile", "--rcfile", str(folder / "rc"), "-i")
    yield shell
    shell.close()


def test_bash_completes_groups_keys_values_verbs_options_runs_recipes_and_files(bash: Terminal) -> None:
    for typed, wanted in (
        ("launch sta\t", "launch|status"),
        ("launch check --expl\tact\t", "launch|check|--explain|activations"),
        ("launch model=llama3_8\ttrain.seq\t64", "launch|model=llama3_8b|train.sequence_length=64"),
        ("launch -m model=1b,ours\t", "launch|-m|model=1b,ours_9b"),
        (f"launch precision.compute={_ALL}", "launch|precision.compute=fp32|fp16|bf16|fp8|fp4"),
        ("launch status fir\t", "launch|status|first"),
        ("launch recipe=our_r\t", "launch|recipe=our_recipe"),
        ("launch data.path=da\ttw\t", "launch|data.path=data/two words.txt"),
        ("launch 'data.path=data/tw\t", "launch|data.path=data/two words.txt"),
        ('launch "mode\t=llama3_8\t', "launch|model=llama3_8b"),
    ):
        assert bash.line(typed) == wanted, typed


HOSTILE = (
    "a$(touch PWNED)",
    "b`touch PWNED`",
    "c'; touch PWNED; 'x",
    'd"; touch PWNED; "x',
    "e && touch PWNED #",
    "q*",
    "g{1,2}",
    "h\\'$(touch PWNED)",
)
"""Names of runs that a shell would act on; a run and a file each, the file to be found by a pattern."""


def hostile_runs(folder: Path) -> None:
    for name in (*HOSTILE, "--trust", "i\x1b[2J", "j\tk", os.fsdecode(b"l\xff")):
        (folder / "runs" / name).mkdir()
        (folder / "runs" / name / "spec.json").touch()
    (folder / "qx$(touch PWNED)").touch()
    (folder / "runs" / "round").symlink_to(folder / "runs")
    (folder / "runs" / "again").symlink_to(folder / "runs")


def test_bash_runs_nothing_that_a_run_is_named_like(bash: Terminal, folder: Path) -> None:
    hostile_runs(folder)
    for name in HOSTILE:
        for quote in ("", "'", '"'):
            if quote == "'" and quote in name:  # It is not offered there, since nothing would keep it from ending it.
                continue
            assert bash.line(f"launch status {quote}{name[0]}\t") == f"launch|status|{name}"
    for begun in ("--tr", "i", "j", "l"):
        assert bash.line(f"launch status {begun}\t") == f"launch|status|{begun}"
    assert not (folder / "PWNED").exists()


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_runs_nothing_that_a_run_is_named_like(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile_runs(folder)
    setup = "autoload -U compinit; compinit -u -D; setopt no_beep; PS1='$ '\n"
    (folder / ".zshrc").write_text(setup + script("zsh", capsys))
    shell = Terminal("env", f"ZDOTDIR={folder}", "zsh", "-d", "-i")
    for name in HOSTILE:
        assert shell.line(f"launch status {name[0]}\t") == f"launch|status|{name}"
    assert not (folder / "PWNED").exists()
    shell.close()


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_is_offered_hostile_names_as_they_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile_runs(folder)
    (folder / "launch.fish").write_text(script("fish", capsys))
    words = ["fish", "--no-config", "-c", "source launch.fish; complete -C 'launch status '"]
    said = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len([line for line in said if "PWNED" in line]) == sum("PWNED" in name for name in HOSTILE)
    assert not (folder / "PWNED").exists()


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_where_it_is_installed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setup = "autoload -U compinit; compinit -u -D; setopt no_beep; PS1='$ '\n"
    (folder / ".zshrc").write_text(setup + script("zsh", capsys))
    shell = Terminal("env", f"ZDOTDIR={folder}", "zsh", "-d", "-i")
    for typed, wanted in (
        ("launch sta\t", "launch|status"),
        ("launch model=llama3_8\ttrain.seq\t64", "launch|model=llama3_8b|train.sequence_length=64"),
        ("launch -m model=1b,ours\t", "launch|-m|model=1b,ours_9b"),
        ("launch recipe=our_r\t", "launch|recipe=our_recipe"),
        ("launch data.path=da\ttw\t", "launch|data.path=data/two words.txt"),
    ):
        assert shell.line(typed) == wanted, typed
    shell.close()


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_where_it_is_installed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "launch.fish").write_text(script("fish", capsys))

    def offered(line: str) -> list[str]:
        words = ["fish", "--no-config", "-c", f"source launch.fish; complete -C '{line}'"]
        return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()

    assert offered("launch sta") == ["status\tthe state of runs"]
    assert "model=ours_9b" in offered("launch model=ours")
    assert offered("launch train.sequence_l")[0].startswith("train.sequence_length=\ttokens; null:")
    assert offered("launch status fi") == ["first"]
