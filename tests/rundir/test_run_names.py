"""Runs in groups (``run.name=group/a``): listed, and found by either name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.rundir import run_names
from tests.support.recorded_runs import line, recorded, swept
from tests.support.slurm_runs import launch


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "p").mkdir()
    monkeypatch.chdir(tmp_path / "p")
    return tmp_path / "p"


def test_a_run_in_a_group_is_found_by_every_verb_with_and_without_its_group(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("grp/a", "other/deep/b"):
        recorded(folder / "runs" / name, f"run.name={name}", steps=[line(1, 2.0)], now="finished")
    recorded(folder / "runs" / "c", now="finished")
    swept(folder / "runs" / "grp" / "s", {"1e-3": 2.0})
    listed = [row.split()[0] for row in launch("status").out.splitlines()[1:]]
    assert sorted(listed) == ["c", "grp/a", "grp/s/000", "other/deep/b"]
    for place in (folder, tmp_path):
        monkeypatch.chdir(place)
        for word in ("grp/a", "a"):
            assert launch("status", word, "--json").json["runs"][0]["id"] == "grp/a"
            assert launch("logs", word).out.startswith("grp/a is finished\n")
            assert "grp/a" in launch("compare", word, "b").out
            assert launch("cancel", word).err.endswith("grp/a is not running\n")
            assert "is finished; nothing to resume" in launch("resume", word).err
        for word in ("s", "grp/s", "grp/s/000", "s/000", "000"):
            assert launch("status", word).status == 0, word
    headings = [row for row in launch("status").out.splitlines() if row.startswith("in ")]
    assert headings == [f"in {folder}/runs/grp:", f"in {folder}/runs:"], "groups are part of the names of their runs"
    recorded(tmp_path / "q" / "runs" / "a", now="finished")
    refused = launch("status", "a", "--json").json["errors"][0]
    assert refused["way_out"] == [str(folder / "runs" / "grp" / "a"), str(tmp_path / "q" / "runs" / "a")]
    assert launch("status", "grp/a").status == 0


def test_links_and_hidden_folders_are_no_groups(folder: Path) -> None:
    run = recorded(folder / "runs" / "grp" / "a", now="finished")
    (folder / "runs" / "again").symlink_to(folder / "runs" / "grp")
    (folder / "runs" / "loop").symlink_to("loop")
    (folder / "runs" / "up").symlink_to("..")
    (folder / "runs" / ".b.7.partial").mkdir()
    (folder / "runs" / ".b.7.partial" / "spec.json").touch()
    (folder / "runs" / "one").symlink_to(run)
    assert [path for path, _ in run_names.below(folder / "runs")] == [run, folder / "runs" / "one"]


def test_a_command_that_is_offered_names_a_run_as_one_word_whatever_it_is_called(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "a; touch PWNED #"
    recorded(folder / "runs" / hostile, now="failed", reason="x")
    waits = recorded(folder / "runs" / f"{hostile}b")
    (waits / "submission.json").write_text('{"kind": "slurm", "job_id": null, "comment": ""}')
    offered = []
    for verb in (["status"], ["status", hostile], ["why", hostile], ["why", hostile, "--json"],
                 ["watch", hostile, "--once"]):  # fmt: skip
        main(verb)
        said = capsys.readouterr()
        offered += re.findall(r"launch (?:why|resume|logs|cancel|watch) (\S+)", said.out + said.err)
    assert set(offered) == {"'a;"}
