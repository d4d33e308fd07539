"""What is kept between commands: answers, of which the oldest go, and the list of a user's own runs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.base import cache
from launcher.cli import main
from launcher.rundir import run_names, signature, state
from launcher.spec.parse import to_dict
from tests.support.helpers import make_spec


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def test_an_answer_is_found_once(tmp_path: Path) -> None:
    asked: list[int] = []

    def find() -> object:
        asked.append(1)
        return {"a": None}

    assert cache.answer("kind", ["question", 1], find) == {"a": None}
    assert cache.answer("kind", ["question", 1], find) == {"a": None}
    assert len(asked) == 1
    (path,) = (tmp_path / "cache" / "launch" / "kind").iterdir()
    whole = path.read_text()
    for number, broken in enumerate(("half a fi", "[]", '{"a": 1}', f"{whole}1", "[" * 100_000, "\xff"), 2):
        path.write_text(broken)
        assert cache.answer("kind", ["question", 1], find) == {"a": None}
        assert len(asked) == number, "what is broken or of another shape is asked anew"


def test_the_older_half_of_too_many_answers_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST", 4)
    folder = tmp_path / "cache" / "launch" / "kind"
    for number in range(5):
        cache.answer("kind", number, lambda: 0)
        newest = max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (number, number))
    assert len(list(folder.iterdir())) == 2
    assert cache.answer("kind", 4, lambda: 1) == 0
    assert cache.answer("kind", 0, lambda: 1) == 1


def recorded(run: Path, *overrides: str) -> Path:
    """A run directory of which nobody has noted that this user made it."""
    run.mkdir(parents=True)
    (run / "spec.json").write_text(json.dumps(to_dict(make_spec("model=tiny", *overrides))))
    (run / "job.json").write_text(json.dumps({"argv": ["touch", "pw ned"]}))
    return run


def test_a_run_of_someone_else_is_resumed_only_with_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    resumed: list[Path] = []

    def resume(run: Path, words: Sequence[str], *, trusted: bool, quiet: bool) -> int:
        resumed.append(run)
        return 0

    monkeypatch.setattr("launcher.commands.resume._resume", resume)
    run = recorded(tmp_path / "runs" / "theirs", "cluster=slurm", "hardware=h100_80g", "cluster.setup=[ls]")
    assert main(["resume", "theirs"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "you did not record this run, or it was moved or changed, and continuing it runs touch 'pw ned'" in said
    assert "cluster.setup=['ls'] runs these shell lines on every node" in said
    assert "--trust" in said
    assert resumed == []
    assert main(["resume", "theirs", "--trust"]) == 0
    (tmp_path / "link").symlink_to(run)
    assert main(["resume", "theirs"]) == 0
    assert main(["resume", "link"]) == 0
    assert len(resumed) == 3


def test_a_sweep_of_someone_else_is_resumed_only_with_trust(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = recorded(tmp_path / "runs" / "theirs" / "0").parent
    (sweep / state.SWEEP).write_text('{"points": []}')
    assert main(["resume", "theirs"]) == 2
    assert "continuing it composes and runs its points" in " ".join(capsys.readouterr().err.split())
    assert not signature.is_own(sweep / "0")
    run_names.remember(sweep)
    assert signature.is_own(sweep)
    assert not signature.is_own(sweep / "0"), "a place is not what makes a record one's own"
    assert main(["resume", "theirs"]) == 2


def test_a_list_of_runs_that_is_long_loses_those_that_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = recorded(tmp_path / "here")
    for run in (here, tmp_path / "gone"):
        run_names.remember(run)
    monkeypatch.setattr(run_names, "_LIST_BYTES", 10)
    run_names.remember(recorded(tmp_path / "new"))
    assert run_names.remembered() == [here, tmp_path / "new"]
    assert "gone" not in (tmp_path / "state" / "launch" / "runs.txt").read_text()
