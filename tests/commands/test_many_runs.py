"""Many runs: the newest and those that live are shown, and of all the others hardly anything is read."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.base.process import Process
from launcher.rundir import state
from tests.support.recorded_runs import line
from tests.support.slurm_runs import launch

RUNS = 30
_opened: list[Path] | None = None


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if _opened is not None and event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], str | Path):
        _opened.append(Path(arguments[0]).absolute())


sys.addaudithook(
    _hear
)  # The interpreter tells it of every file that is opened, in whichever way; it cannot be removed.


@contextmanager
def _files_opened(below: Path) -> Iterator[Counter[str]]:
    """The names of files and folders below a folder that are opened, counted at the end."""
    global _opened
    found: Counter[str] = Counter()
    _opened = []
    try:
        yield found
    finally:
        found.update(path.name for path in _opened if path.is_relative_to(below))
        _opened = None


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "")  # No Slurm is asked.
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def _made(run: Path, at: int, *, submission: dict[str, Any] | None = None, **now: Any) -> Path:
    """A run as it looks from outside, last touched at a time, in the state that ``now`` says."""
    (run / "checkpoints" / "step-00000002").mkdir(parents=True)
    (run / "checkpoints" / "step-00000002" / "state.json").touch()
    (run / "spec.json").write_text('{"train": {"steps": 2}}')
    (run / "metrics.jsonl").write_text("".join(json.dumps(line(step, 1 + at / 100)) + "\n" for step in (1, 2)))
    if now:
        (run / "state.json").write_text(json.dumps(now))
    if submission:
        (run / state.SUBMISSION).write_text(json.dumps(submission))
    os.utime(run, (at, at))
    return run


def _ended(folder: Path, first: int, until: int) -> None:
    for number in range(first, until):
        _made(folder / f"r{number:03d}", 1000 + number, state="finished")


def _shown(*words: str) -> list[str]:
    """The first word of each row."""
    return [row.split()[0] for row in launch("status", *words).out.splitlines()[1:] if not row.startswith(" ")]


def test_the_newest_runs_are_shown_first_and_the_others_are_counted(folder: Path) -> None:
    _ended(folder, 0, RUNS)
    newest = [f"r{number:03d}" for number in reversed(range(RUNS))]
    assert _shown() == [*newest[:20], "10"]
    assert launch("status").out.endswith("\n10 more that are neither queued nor running: launch status --all\n")
    assert _shown("--newest", "3") == [*newest[:3], "27"]
    assert _shown("--all") == newest
    assert _shown("r001", "r000") == ["r001", "r000"], "runs that are named are shown, in that order"


def test_runs_that_wait_or_run_are_shown_however_old_they_are(folder: Path) -> None:
    here = Process.here()
    elsewhere = replace(here, boot="another", host="b7")
    running: dict[str, Any] = {"state": "running", "keeper": here.as_dict()}
    _made(folder / "runs", 1, submission={"kind": "local"}, **running)
    waiting = {"kind": "local", "job_id": "12", "process": here.as_dict()}
    _made(folder / "waits", 2, submission=waiting)
    _made(folder / "again", 3, submission={"kind": "slurm", "job_id": "7"}, state="requeued")
    _made(folder / "away", 4, state="running", keeper=elsewhere.as_dict())
    _made(folder / "sweep" / "000", 5, **running)
    (folder / "sweep" / state.SWEEP).write_text('{"points": []}')
    os.utime(folder / "sweep", (5, 5))
    _made(folder / "gone", 6, state="running", keeper=replace(here, start=7).as_dict())
    _made(folder / "recorded", 7)
    _ended(folder, 0, RUNS)
    assert _shown("--newest", "2") == ["r029", "r028", "sweep/000", "away", "again", "waits", "runs", "30"]
    assert _shown("--newest", "0") == ["sweep/000", "away", "again", "waits", "runs", "32"]
    states = {row["id"]: row["state"] for row in launch("status", "--newest=0", "--json").json["runs"]}
    assert states == {
        "runs": "running",
        "waits": "queued",
        "again": "requeued",
        "away": "not_visible",
        "sweep/000": "running",
    }
    assert launch("watch", "--once").out.startswith("sweep/000  running"), "the newest that lives"


def test_a_program_gets_all_runs_unless_it_asks_for_the_newest(folder: Path) -> None:
    _ended(folder, 0, RUNS)
    whole = launch("status", "--json").json
    assert ([row["id"] for row in whole["runs"]], whole["more"]) == ([f"r{number:03d}" for number in range(RUNS)], 0)
    assert launch("status", "--json", "--all").json == whole
    some = launch("status", "--json", "--newest", "4").json
    assert (some["runs"], some["more"]) == (whole["runs"][-4:], 26)
    assert launch("status", "r003", "--json").json["more"] == 0


def test_a_column_is_compared_among_all_runs(folder: Path) -> None:
    _ended(folder, 0, RUNS)
    assert _shown("--sort", "loss") == [f"r{number:03d}" for number in range(RUNS)]
    assert _shown("--sort", "loss", "--newest", "2") == ["r028", "r029", "28"]


@pytest.mark.parametrize("words", [("--newest", "-1"), ("--newest", "3", "--all"), ("--newest", "3", "r000")])
def test_a_number_of_runs_that_means_nothing_is_refused(words: tuple[str, ...], folder: Path) -> None:
    _ended(folder, 0, 1)
    [error] = launch("status", *words, "--json").json["errors"]
    assert (error["path"], error["way_out"]) == ("--newest", ["--newest 20", "--all"])


@pytest.mark.parametrize("words", [("status",), ("status", "--newest", "5", "--json"), ("watch", "--once")])
def test_of_a_run_that_is_not_shown_its_state_alone_is_read(words: tuple[str, ...], folder: Path) -> None:
    _ended(folder, 0, RUNS)
    launch(*words)  # What is imported only once is none of it.
    with _files_opened(folder) as some:
        launch(*words)
    _ended(folder, RUNS, 4 * RUNS)
    with _files_opened(folder) as many:
        launch(*words)
    assert some["spec.json"] > 0
    assert many - some == {"state.json": 3 * RUNS}, "one file of each run, however much it holds"


@pytest.mark.parametrize("begun", ["", "r", "r00", "r001"])
def test_completion_opens_no_file_of_any_run(begun: str, folder: Path) -> None:
    _ended(folder, 0, RUNS)
    launch("__complete", "bash", f"launch status {begun}", begun)
    with _files_opened(folder) as opened:
        launch("__complete", "bash", f"launch status {begun}", begun)
    assert opened == {"runs": 1}


def test_a_begun_name_is_completed_also_to_an_old_run_and_a_group_by_its_first_run(folder: Path) -> None:
    _ended(folder, 0, 250)
    _ended(folder / "g", 0, RUNS)
    assert launch("__complete", "bash", "launch status r00", "r00").out.split() == [f"r00{n}" for n in range(9, -1, -1)]
    with _files_opened(folder) as opened:
        assert launch("__complete", "bash", "launch status g", "g").out.split() == ["g/"]
    assert opened == {"runs": 1, "g": 1}
