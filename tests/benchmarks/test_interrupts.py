"""Ctrl-C at a few random moments of a real launch; the benchmark has many more."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import interrupts
from tests.support.helpers import ROOT


def test_a_launch_that_is_interrupted_at_any_moment_leaves_nothing_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    found = interrupts.disturbed(tmp_path, ["run"], 6, seed=1, life=(0.5, 0.8))
    assert len(found) == 6
    assert not [one for one in found if one.faults]


CHILD = "import signal; print('heard' if signal.getsignal({number}) != signal.SIG_IGN else 'ignored')"
PARENT = """
import os, subprocess, sys
from benchmarks import signals

def said():
    return subprocess.run([sys.executable, "-c", sys.argv[1]], capture_output=True, text=True).stdout.strip()

before = said()
signals.hear_in_children()
os.kill(os.getpid(), {number})
print(before, said(), "and this one lives")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_what_is_started_hears_a_signal_that_its_parent_was_started_to_ignore(number: int) -> None:
    words = [sys.executable, "-c", PARENT.format(number=int(number)), CHILD.format(number=int(number))]
    deaf = ["sh", "-c", f"trap '' {int(number)}; exec \"$@\"", "sh", *words]
    done = subprocess.run(deaf, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout == "ignored heard and this one lives\n", done.stderr


BLOCKED = """
import signal
from benchmarks import signals

signals.hear_in_children()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("heard")
"""


def test_a_signal_that_was_blocked_is_heard_too() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, cwd=ROOT, check=False)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert done.stdout == "heard\n", done.stderr
