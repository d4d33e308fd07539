"""``launch watch`` on a terminal of its own: it draws, ends with the run, and leaves by a key without harm."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.rundir import state
from tests.support.helpers import ROOT
from tests.support.recorded_runs import line, recorded, swept


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


class Terminal:
    """The command on a terminal of 80 columns."""

    def __init__(self, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
        command = [sys.executable, "-m", "launcher", "watch", *words]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment, text=False
        )
        os.close(theirs)
        self.seen = ""

    def until(self, text: str) -> None:
        """Read until a text was drawn."""
        deadline = time.monotonic() + 300
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self._ours], [], [], 1)[0]:
                self.seen += os.read(self._ours, 65536).decode(errors="replace")

    def press(self, key: str) -> None:
        """Press a key."""
        os.write(self._ours, key.encode())

    def end(self) -> tuple[int, str]:
        """Wait for its end: status and messages."""
        _, err = self.process.communicate(timeout=500)
        os.close(self._ours)
        return self.process.returncode, err.decode()


@pytest.fixture
def running(folder: Path) -> Path:
    """A run whose keeper is this process."""
    run = recorded(folder / "runs" / "a", "train.steps=40", steps=[line(4, 2.5)])
    state.put(run, "running", process_group=os.getpgid(0))
    return run


def test_a_key_leaves_it_and_the_run_goes_on(running: Path) -> None:
    terminal = Terminal("a", "--interval", "0.1")
    terminal.until("q leaves; the run keeps running")
    assert "4/40 10%" in terminal.seen
    terminal.press("q")
    assert terminal.end() == (0, "launch: a keeps running; launch watch a shows it again\n")


def test_it_draws_what_is_new_and_ends_with_the_run(running: Path) -> None:
    terminal = Terminal("a", "--interval", "0.1")
    terminal.until("4/40 10%")
    with (running / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "loss": 1.25, "tokens_per_second": 3.0}\n')
    terminal.until("40/40 100%")
    state.put(running, "failed", reason="rank 1: the learning rate is a fish")
    terminal.until("launch why a explains why it ended")
    assert terminal.end() == (0, "")


def test_where_nobody_looks_it_prints_one_frame(running: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("a  running")
    assert "4/40 10%" in out
    assert "q leaves" not in out


def test_a_sweep_is_its_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    swept(folder / "runs" / "s", {"1e-3": 2.5, "1e-4": None})
    assert main(["watch", "s"]) == 0
    out = capsys.readouterr().out
    assert "000   finished" in out
    assert "001   left out" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [(["nothing"], "no such run"), (["--interval", "0"], "must be more than 0 seconds between two frames")],
)
def test_what_cannot_be_watched_is_said(
    folder: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_without_runs_is_no_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch"]) == 0
    assert "no runs" in capsys.readouterr().err
