"""``launch plan`` as it is typed."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest

from launcher.actions import layout_search
from launcher.base import machine
from launcher.cli import main
from launcher.planner import planning
from launcher.planner.candidates import Found
from launcher.planner.judge import Preflight
from launcher.planner.parallel_search import Progress
from launcher.planner.question import ask
from launcher.spec import RunSpec
from tests.support.helpers import CPU_HOST
from tests.support.layouts import FEW


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "facts", lambda: CPU_HOST)


def test_the_first_layout_is_a_line_that_check_calls_fitting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *FEW]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    line = said.out[said.out.index("launch the first:\n") :].partition("\n")[2].partition("\n\n")[0]
    words = shlex.split(line.replace("\\\n", " "))[1:]
    assert main(["check", *words]) == 0
    assert "FITS" in capsys.readouterr().out


def test_the_document_is_that_of_check_for_each_layout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *FEW, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["plan"]
    speeds = [layout["speed"]["tokens_per_second"] for layout in found["layouts"]]
    assert len(speeds) > 2
    assert speeds == sorted(speeds, reverse=True)
    assert found["words"] == list(FEW)
    last = found["layouts"][-1]
    assert main(["check", *shlex.split(last["line"])[1:], "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert checked["speed"] == last["speed"]
    assert checked["gpu"]["memory_bytes"] == last["capacity_bytes"]


def test_where_nothing_fits_the_status_is_that_of_a_run_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *FEW, "hardware.memory_bytes=2000000000"]) == 3
    assert "DOES NOT FIT" in capsys.readouterr().out
    assert main(["plan", *FEW, "hardware.memory_bytes=2000000000", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["plan"]["layouts"] == []


def test_an_interrupted_search_shows_the_best_so_far(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Found()
    planning.plan(ask(FEW), progress=lambda so_far: found.merge(so_far) if not found.best else None)
    assert found.best

    def interrupted(spaces: object, judge: object, progress: Progress) -> Found:
        progress(found)
        raise KeyboardInterrupt

    monkeypatch.setattr(planning, "searched", interrupted)
    assert main(["plan", *FEW]) == 130
    said = capsys.readouterr()
    assert "not the full answer" in said.err
    assert "launch the first of those found so far:" in said.out
    assert main(["plan", *FEW, "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["plan"]["finished"] is False


def test_a_search_that_is_interrupted_at_once_shows_the_layout_that_was_found_first() -> None:
    question, found = ask(FEW), Found()
    planning.plan(question, progress=lambda so_far: setattr(found, "early", so_far.early))
    assert found.early is not None
    told = planning.answer(question, found, Preflight(), seconds=1.0, finished=False)
    assert [each.spec for each in told.layouts] == [found.early.spec]
    assert planning.answer(question, found, Preflight(), seconds=1.0).layouts == ()


def test_a_terminal_is_shown_the_best_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(layout_search, "_OFTEN_S", 0.0)
    planned = layout_search.search_interruptibly(ask(FEW), Preflight())
    shown = " ".join(capsys.readouterr().err.split())
    assert "best so far" in shown
    assert planned.finished


def test_a_watched_judge_judges_as_its_own_and_tells_each_run() -> None:
    told: list[RunSpec] = []
    judge = Preflight()
    spec = ask(FEW).openings[0].spec
    watched = layout_search._Watched(judge, told.append)
    verdict = watched.verdict(spec)
    assert told == [spec]
    assert verdict == judge.verdict(spec)
    assert watched.seconds(spec) == judge.seconds(spec)
    assert watched.least_seconds(spec, [("1f1b", 1)]) == judge.least_seconds(spec, [("1f1b", 1)])
    assert watched.speed(spec, verdict) == judge.speed(spec, verdict)
    assert list(watched.errors(spec)) == []


def test_where_nobody_looks_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    spec = ask(FEW).openings[0].spec
    with layout_search.watch_judge(Preflight()) as watched:
        watched.verdict(spec)
    assert capsys.readouterr().err == ""


def test_a_search_imports_nothing_that_starts_runs() -> None:
    program = (
        "import sys; from launcher.cli import main; main(sys.argv[1:]);"
        "print([room for room in ('launcher.actions.sweep', 'launcher.sweeping', 'submitit') if room in sys.modules])"
    )
    words = ["plan", "model=tiny", "hardware=h100_80g", "cluster.gpus_per_node=1", "--json"]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
