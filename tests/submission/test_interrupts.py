"""Signals that come at the worst moments of a command, in this process and at exactly these moments."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.actions import follow
from launcher.actions import run as run_verb
from launcher.actions.requests import judge_run
from launcher.base import files
from launcher.rundir import state
from launcher.rundir.record import record as recording
from launcher.slurm import precheck
from launcher.submission import interrupts, slurm_jobs
from tests.support.helpers import composed_once
from tests.support.recorded_runs import recorded
from tests.support.slurm_runs import SLURM, launch

NOTHING = "launch: interrupted; nothing was started\n"


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The handlers of the command, in a folder of its own, put back behind the test."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    monkeypatch.setattr(interrupts, "_noted", interrupts._Noted())
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    before = {number: signal.getsignal(number) for number in (*interrupts.SIGNALS, signal.SIGALRM)}
    interrupts.install()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def then_signal(function: Callable[..., Any], number: signal.Signals = signal.SIGINT) -> Callable[..., Any]:
    """A function behind which a signal comes at once."""

    def called(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        signal.raise_signal(number)
        return result

    return called


LOCAL = ("model=tiny", "script=train.py", "cluster.gpus_per_node=1", "hardware.device=cpu", "run.name=a")


@pytest.mark.parametrize("number", interrupts.SIGNALS)
def test_between_the_record_and_the_start_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    monkeypatch.setattr(run_verb, "record", then_signal(recording, number))
    answer = launch(*LOCAL)
    assert (answer.status, answer.err.endswith(NOTHING)) == (130, True)
    assert list((tmp_path / "runs").iterdir()) == []


def test_while_the_run_is_judged_nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run_verb, "judge_run", then_signal(judge_run))
    assert (launch(*LOCAL).status, (tmp_path / "runs").exists()) == (130, False)


def test_an_error_that_an_import_has_made_of_the_signal_is_an_interruption_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **options: object) -> None:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise SystemError("initialization of _extension raised unreported exception")

    monkeypatch.setattr(run_verb, "judge_run", broken)
    answer = launch(*LOCAL)
    assert (answer.status, answer.err) == (130, NOTHING)


def test_a_job_that_slurm_has_is_noted_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(precheck, "check", lambda *args, **options: None)
    monkeypatch.setattr(precheck, "check_folder", lambda *args: None)
    monkeypatch.setattr(slurm_jobs, "_submit", then_signal(lambda *args: ["7"]))
    answer = launch(*SLURM, "script=train.py", "run.name=a")
    assert answer.status == 130
    way = "`launch logs a` shows it, `launch cancel a` stops it"
    assert answer.err.endswith(f"launch: interrupted; a keeps running: {way}\n")
    assert (files.read_json(tmp_path / "runs" / "a" / state.SUBMISSION) or {})["job_id"] == "7"


def test_while_slurm_is_asked_nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(precheck, "check", then_signal(lambda *args, **options: None))
    answer = launch(*SLURM, "script=train.py", "run.name=a")
    assert (answer.status, answer.err.endswith(NOTHING)) == (130, True)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_sweep_that_is_judged_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from launcher.actions import sweep

    monkeypatch.setattr(sweep, "record", then_signal(recording))
    answer = launch("-m", *LOCAL, "train.seed=1,2")
    assert (answer.status, answer.err.endswith(NOTHING)) == (130, True)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_closed_terminal_leaves_the_run_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = recorded(tmp_path / "runs" / "a", now="running")
    monkeypatch.setattr(follow, "_news", then_signal(lambda directory: [[]], signal.SIGHUP))
    interrupts.note_begun("a")
    with pytest.raises(interrupts.Interrupted):
        follow.watch_run(run, composed_once("model=tiny"), quiet=True)
    assert not (run / state.CANCEL_REQUEST).exists()


def test_a_second_signal_does_not_break_off_what_the_first_clears_away() -> None:
    cleared = False
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        signal.raise_signal(signal.SIGINT)
        cleared = True
    assert cleared


def test_what_must_not_be_cut_in_two_is_done_first_and_a_long_part_of_it_is_not() -> None:
    done = []

    def work() -> None:
        with interrupts.held():
            signal.raise_signal(signal.SIGTERM)
            done.append("held")
            with interrupts.let_through():
                done.append("a long part")

    with pytest.raises(interrupts.Interrupted):
        work()
    assert done == ["held"]


def test_a_signal_in_a_callback_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    class Falling:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def fall() -> None:
        falling = Falling()
        del falling
        time.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        fall()
    assert capfd.readouterr().err == ""


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupts.install()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
