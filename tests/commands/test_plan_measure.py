"""`launch plan --measure`: nothing starts before its cost is known and agreed to; then real runs, ranked."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from launcher.actions import sweep as _sweeping
from launcher.sweeping.sweep import Sweep
from tests.support import torchrun
from tests.support.measured_layouts import WORDS
from tests.support.slurm_runs import launch
from tests.support.training import SMALL

MEASURE = ("plan", *WORDS, "cluster.price_per_gpu_hour=2.5", "--measure")
LAID_OUT = ("train.micro_batch_size=4", "checkpointing=none", "zero.offload_optimizer=none", "train.loss=full")
HERE = (
    *("plan", *SMALL, *LAID_OUT, "cluster.gpus_per_node=1", "parallel=ddp,fsdp", "parallel.tensor=1"),
    *("parallel.pipeline=1", "parallel.context=1", "parallel.ulysses=1"),
)


class Terminal(io.StringIO):
    """A person who answers."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, with no runs but those of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def test_without_a_terminal_nothing_starts_unless_it_was_agreed_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    answer = launch(*MEASURE, "2")
    assert answer.status == 2
    assert "GPU-hours needs consent before a run starts" in " ".join(answer.err.split())
    assert "try  --yes\n   or  --dry-run" in answer.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(("typed", "started"), [("y\n", 1), ("\n", 0), ("no\n", 0)])
def test_at_a_terminal_the_gpu_hours_are_said_and_asked_about(
    monkeypatch: pytest.MonkeyPatch, typed: str, started: int
) -> None:
    asked: list[Sweep] = []

    def begun(sweep: Sweep, proposals: object, **options: object) -> tuple[Path, list[object], int]:
        asked.append(sweep)
        return Path("runs", "m"), [], 0

    monkeypatch.setattr(_sweeping, "begin_sweep", begun)
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    monkeypatch.setattr("launcher.commands.plan._can_ask", lambda options: True)
    answer = launch(*MEASURE, "2")
    said = " ".join(answer.out.split())
    assert "2 short runs of 20 steps on 2 x NVIDIA H100 80GB HBM3, a Slurm array:" in said
    assert "GPU-hours (cost " in said
    assert "at most 0.867 (cost 2.17) by the time limit of 13 min for each run, at 2.5 a GPU-hour" in said
    assert "start them? [y/N]" in answer.err
    assert len(asked) == started
    assert ("launch: nothing was started" in answer.err) is not bool(started)


def test_a_dry_run_shows_the_runs_and_the_array_and_writes_nothing() -> None:
    answer = launch(*MEASURE, "5", "--dry-run", "--json", "save.every=7")
    assert answer.status == 0, answer.err
    assert "launch: 5 layouts were requested and there are only 2: these are measured" in answer.err
    found = answer.json["measurement"]
    assert (found["id"], found["directory"], found["steps"], found["left_out"]) == (None, None, 20, ["save.every=7"])
    assert [(point["id"], point["verdict"]) for point in found["points"]] == [("000", "fits"), ("001", "fits")]
    assert found["price"] == pytest.approx(2.5 * found["gpu_hours"])
    assert found["most_price"] == pytest.approx(2.5 * found["most_gpu_hours"])
    assert "#SBATCH --array=0-1%2\n" in found["sbatch"]
    assert f"#SBATCH --time={found['time_limit_min']}\n" in found["sbatch"]
    shown = launch(*MEASURE, "1", "--dry-run").out
    assert "\nlaunch model=tiny hardware=h100_80g cluster=slurm " in shown
    assert not any(Path.cwd().iterdir())


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("--measure", "0", "--yes"), "must be 1 or more layouts"),
        (("--measure", "1", "--steps", "1", "--yes"), "must be at least 2, since the first half of the steps is"),
        (("--yes",), "it applies only to --measure, which starts runs"),
        (("--measure", "1", "--save", "mine", "--yes"), "--results writes its recipe"),
        (("--results", "m"), "--results reads a measurement, which already has its settings"),
        (("--results", "m", "--days", "0"), "--days: --results reads a measurement"),
        (("--measure", "1", "--yes", "cluster=local"), "this machine has no GPU"),
        (("--measure", "1", "--yes", "sweep.sampler=tpe", "sweep.budget=2"), "a sampler draws points"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: tuple[str, ...], rule: str) -> None:
    answer = launch("plan", *WORDS, *words)
    assert (answer.status, rule in " ".join(answer.err.split())) == (2, True), answer.err
    assert not Path("runs").exists()


@pytest.mark.thorough
def test_layouts_are_measured_here_one_after_the_other_and_ranked_under_a_torchrun_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(torchrun.without_torch(tmp_path / "agent", forked=True)))
    answer = launch(*HERE, "--measure", "2", "--steps", "4", "--yes", "run.name=m")
    assert answer.status == 0, answer.err
    said = " ".join(answer.out.split())
    assert "2 short runs of 4 steps on 1 CPU rank, one after the other, here:" in said
    assert "winner's recipe: data=synthetic" not in said, "words that say the same are kept"
    assert "how many rank-hours the steps take is not predicted; no time limit ends a run on this machine" in said
    assert "its recipe: launch plan --results m" in said
    assert "nothing is saved" not in answer.err, "that is what a measurement is meant to do"
    found = launch("plan", "--results", "m", "--json").json["measurement"]
    assert {row["overrides"][0] for row in found["points"]} == {"parallel=ddp", "parallel=fsdp"}
    assert [row["rank"] for row in found["points"]] == [1, 2]
    first, second = [row["measured"] for row in found["points"]]
    assert first["tokens_per_second_per_gpu"] >= second["tokens_per_second_per_gpu"] > 0
    assert all(row["measured"]["allocated_bytes"] > 0 for row in found["points"])
    assert not list(Path("runs", "m").glob("*/checkpoints/step-*"))
    assert (Path("recipes", "m.yaml").read_text()).startswith(
        "# launch recipe=m\nschema: 1\nsummary: The fastest of 2 "
    )
    content = json.loads(Path("runs", "m", "sweep.json").read_text())["measurement"]
    assert content["question"] == [word for word in HERE if word != "plan"] + ["run.name=m"]
    again = launch(*HERE, "--measure", "1", "--steps", "4", "--yes", "run.name=m")
    assert (again.status, "runs/m exists and is never overwritten" in again.err) == (4, True)
