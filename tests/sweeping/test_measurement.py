"""Measured layouts: ranked by what was measured, with what was predicted beside it, and the winner as a recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.actions import sweep as _sweeping
from launcher.config import recipes
from launcher.rundir import state
from launcher.sweeping import measurement
from tests.support.measured_layouts import measured
from tests.support.recorded_runs import swept
from tests.support.slurm_runs import launch


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, with no runs but those of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def memory(run: Path, size: int) -> None:
    (run / "memory.json").write_text(json.dumps({"ranks": [{"phases": {"forward": size}, "static_bytes": 1}]}))


def test_layouts_are_ranked_by_what_was_measured_beside_what_was_predicted() -> None:
    folder = measured(Path.cwd() / "runs" / "m", [("finished", 2000.0), ("finished", 3000.0)])
    memory(folder / "001", 10**8)
    answer = launch("plan", "--results", "m", "--json")
    assert answer.status == 0, answer.err
    found: dict[str, Any] = answer.json["measurement"]
    first, second = found["points"]
    assert [(row["rank"], row["point"], row["run"]) for row in (first, second)] == [
        (1, "001", "m/001"),
        (2, "000", "m/000"),
    ]
    assert [row["measured"]["tokens_per_second_per_gpu"] for row in (first, second)] == [1500.0, 1000.0]
    assert first["measured"] | {"step_seconds": None} == {
        "tokens_per_second_per_gpu": 1500.0,
        "step_seconds": None,
        "allocated_bytes": 10**8,
    }
    assert second["predicted"]["tokens_per_second_per_gpu"] > first["predicted"]["tokens_per_second_per_gpu"] > 1500
    assert first["predicted"]["allocated_bytes"] > 0
    assert (found["question"][0], found["machine"], found["steps"]) == ("model=tiny", "2 x NVIDIA H100 80GB HBM3", 20)
    assert {"launcher", "python", "packages"} == set(found["versions"])
    assert found["recipe"] == {"path": str(Path.cwd() / "recipes" / "m.yaml"), "use": "launch recipe=m"}


def test_the_winner_is_a_recipe_of_the_training_with_its_evidence() -> None:
    words = ("train.steps=1000", "save.every=100")
    folder = measured(Path.cwd() / "runs" / "m", [("finished", 2000.0), ("finished", 3000.0)], words=words)
    memory(folder / "001", 10**8)
    answer = launch("plan", "--results", "m")
    assert answer.out.endswith(f"\nthe fastest as a recipe: {Path.cwd()}/recipes/m.yaml\nlaunch recipe=m\n")
    recipe = recipes.load(Path("recipes", "m.yaml"))
    assert recipe.choose["parallel"] == "ddp"
    assert (recipe.set["train.steps"], recipe.set["save.every"], "save.last" in recipe.set) == (1000, 100, False)
    assert recipe.summary == "The fastest of 2 measured layouts, of tiny on 2 x NVIDIA H100 80GB HBM3"
    evidence = recipe.source.split("; ")
    assert evidence[0].startswith("measured 1,500 tokens/s a GPU (predicted ")
    assert evidence[0].endswith("), median of the last 10 of 20 steps on random tokens")
    assert evidence[1].startswith("95.4 MiB allocated on the fullest rank (predicted ")
    assert evidence[2] == "on 2 x NVIDIA H100 80GB HBM3"
    assert evidence[3].startswith("launch ")
    assert evidence[4:] == ["2001-09-09", "run m/001", "others: m/000 1,000 tokens/s a GPU"]


def test_a_recipe_is_never_overwritten_and_one_of_the_same_results_stays() -> None:
    measured(Path.cwd() / "runs" / "m", [("finished", 2000.0), ("finished", 3000.0)])
    assert launch("plan", "--results", "m", "--save", "mine").status == 0
    before = Path("recipes", "mine.yaml").read_text()
    assert launch("plan", "--results", "m", "--save", "mine").status == 0
    Path("recipes", "mine.yaml").write_text(before.replace("measured 1,500", "measured 1,600"))
    refused = launch("plan", "--results", "m", "--save", "mine")
    assert refused.status == 4
    assert "mine.yaml exists and is not overwritten: choose another name, as --save NAME" in refused.err
    assert "1,600" in Path("recipes", "mine.yaml").read_text()
    assert launch("plan", "--results", "m", "--save", "a b").status == 2


def test_runs_without_a_result_are_rows_with_the_reason_and_no_winner_is_written_while_some_wait() -> None:
    ends = [("running", None), ("failed", "rank 0: out of GPU memory: tried to allocate 2.00 GiB")]
    folder = measured(Path.cwd() / "runs" / "m", ends)  # type: ignore[arg-type]
    answer = launch("plan", "--results", "m")
    rows = answer.out.splitlines()
    assert answer.status == 0
    assert rows[1].split()[:4] == ["-", "000", "running", "-"]
    assert rows[3].split()[:4] == ["-", "001", "failed", "-"]
    assert rows[5].strip() == "rank 0: out of GPU memory: tried to allocate 2.00 GiB"
    assert rows[-1] == "1 of 2 runs have not ended"
    assert not Path("recipes").exists()
    refused = launch("plan", "--results", "m", "--save", "mine")
    assert (refused.status, "no run has finished" in refused.err) == (2, True)
    state.put(folder / "000", "cancelled")
    ended = launch("plan", "--results", "m", "--json")
    assert (ended.status, ended.json["measurement"]["recipe"]) == (5, None)
    assert [row["state"] for row in ended.json["measurement"]["points"]] == ["cancelled", "failed"]


def test_the_best_so_far_is_written_by_name_alone_and_says_that_others_are_to_come() -> None:
    measured(Path.cwd() / "runs" / "m", [("finished", 2000.0), ("running", None)])
    assert launch("plan", "--results", "m").status == 0
    assert not Path("recipes").exists()
    assert launch("plan", "--results", "m", "--save", "early").status == 0
    recipe = recipes.load(Path("recipes", "early.yaml"))
    assert recipe.summary.startswith("The one layout that was measured, with 1 to come, of tiny on ")
    assert recipe.source.endswith("others: m/001 running")


def test_what_is_no_measurement_is_refused_with_the_way_out() -> None:
    swept(Path.cwd() / "runs" / "s", {"0.1": 1.0})
    for name, rule in (
        ("s", "it is a sweep, but not a measurement"),
        ("s/000", "it is a run, not a measurement of layouts"),
        ("nothing", "no such run"),
    ):
        answer = launch("plan", "--results", name)
        assert (answer.status, rule in " ".join(answer.err.split())) == (2, True), answer.err
    folder = measured(Path.cwd() / "runs" / "m", [("finished", 2000.0)])
    content = json.loads((folder / state.SWEEP).read_text())
    content["measurement"]["speeds"] = []
    (folder / state.SWEEP).write_text(json.dumps(content))
    answer = launch("plan", "--results", "m")
    assert (answer.status, "its measurement is not in the form" in answer.err) == (4, True)


def test_status_shows_a_measurement_as_a_sweep_and_says_what_ranks_it() -> None:
    folder = measured(Path.cwd() / "runs" / "m", [("finished", 2000.0), ("failed", "no")])
    answer = launch("status", "m")
    assert "000   finished  fits" in answer.out
    assert answer.out.endswith("\nranked by speed: launch plan --results m\n")
    assert measurement.read(folder).measured[0].counted == 10


def test_a_measurement_of_somebody_else_makes_a_recipe_that_is_as_foreign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("cluster.setup=[echo]",)
    folder = measured(tmp_path / "theirs", [("finished", 2000.0)], words=words)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    answer = launch("plan", "--results", str(folder))
    assert answer.status == 0, answer.err
    assert f"it is from {folder}/000, which is not trusted" in " ".join(answer.err.split())
    assert launch("recipe=theirs", "--json").status == 2


def test_resume_starts_the_runs_of_a_measurement_that_have_not_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = measured(Path.cwd() / "runs" / "m", [("finished", 2000.0), ("failed", "no")])
    before = json.loads((folder / state.SWEEP).read_text())
    started: list[Path] = []

    def submit_all(recorded: list[tuple[Path, object]], *limits: object) -> list[str]:
        started.extend(run for run, _ in recorded)
        return ["1"]

    monkeypatch.setattr(_sweeping, "submit_all", submit_all)
    answer = launch("resume", "m")
    assert answer.status == 0, answer.err
    assert started == [folder / "001"]
    assert json.loads((folder / state.SWEEP).read_text()) == before
