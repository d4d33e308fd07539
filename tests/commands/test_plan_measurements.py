"""Measured runs as their user meets them: listed, taken out, in the speed that is predicted, and switched off.

The rows are made up: no GPU has run for them. That real runs land is seen where real runs are
(``tests/commands/test_recipe_lock.py``).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.base import machine
from launcher.planner.judge import Preflight
from launcher.planner.planning import plan
from launcher.planner.question import ask
from launcher.preflight.measured import file
from launcher.preflight.measured.known import Measured
from launcher.rundir import lock
from tests.support.helpers import CPU_HOST, make_spec
from tests.support.measured_rows import RUN, row, users_own, written
from tests.support.slurm_runs import launch

ROWS = (row(0, 0.4), row(1, 0.5), row(2, 0.51))


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own file with three rows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(machine, "facts", lambda: CPU_HOST)
    return written(users_own(), *ROWS)


def test_check_says_that_a_speed_is_from_made_up_runs_on_this_cluster_until_they_are_switched_off() -> None:
    text = " ".join(launch("check", *RUN).out.split())
    assert ", from 3 runs on this cluster), " in text
    shipped = " ".join(launch("check", *RUN, "--no-measurements").out.split())
    assert "this cluster" not in shipped
    before, after = (launch("check", *RUN, "--json", *words).json["speed"] for words in (("--no-measurements",), ()))
    assert (after["constant"]["value"], after["constant"]["here"], before["constant"]["here"]) == (0.5, True, False)
    assert after["constant"]["calibration"] == before["constant"]["calibration"]
    raw = before["tokens_per_second"] / before["constant"]["value"]
    assert after["tokens_per_second"] == pytest.approx(0.5 * raw)
    table = " ".join(launch("check", *RUN, "--speed").out.split())
    assert "in 3 runs of PyTorch FSDP on h100_80g, this cluster, one of each layout; error band " in table
    together = table.replace(" ", "")  # A long path is broken over lines.
    assert together.endswith("/launch/measurements.jsonl;--no-measurementsleavesyourrunsout)")


def test_points_and_sweeps_take_them_and_leave_them_out(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    path.write_text(json.dumps({"id": 1, "overrides": RUN}))
    for words in (("check", "--points", str(path)), ("check", "-m", *RUN, "train.seed=1", "--json")):
        found = []
        for off in ((), ("--no-measurements",)):
            answer = launch(*words, *off).json
            [point] = answer.get("points", [answer])
            found.append(
                point["speed"]["tokens_per_second_per_gpu"]
                if "speed" in point
                else point["predicted_tokens_per_second_per_gpu"]
            )
        assert found[0] < 0.8 * found[1]


def test_a_plan_ranks_by_them_and_finds_the_same_layout_of_one_engine() -> None:
    words = ["model=1b", "parallel=fsdp", "zero.stage=3", "hardware=h100_80g", "cluster.nodes=1"]
    words += ["cluster.gpus_per_node=8", "parallel.tensor=1", "parallel.context=1", "parallel.ulysses=1"]
    words += ["zero.offload_optimizer=none", "train.micro_batch_size=1,2", "train.global_batch_size=64"]
    question = ask(words)
    shipped, measured = plan(question, judge=Preflight()), plan(question, judge=Preflight(Measured()))
    assert [each.overrides for each in shipped.layouts] == [each.overrides for each in measured.layouts]
    assert shipped.layouts
    for before, after in zip(shipped.layouts, measured.layouts, strict=True):
        assert before.speed is not None
        assert after.speed is not None
        assert (before.speed.constant.here, after.speed.constant.here) == (False, True)
        assert after.speed.step_seconds == pytest.approx(
            before.speed.step_seconds * before.speed.constant.value / after.speed.constant.value
        )


def test_the_listing_says_which_runs_are_there_why_one_does_not_count_and_what_follows(own: Path) -> None:
    short = row(3, left_out="9 steps were measured, and at least 10 are needed")
    written(own, short, row(4, framework="Megatron-Core"))
    own.write_bytes(own.read_bytes() + b"{}\n")
    answer = launch("plan", "--measurements")
    assert (answer.status, answer.err) == (0, "")
    assert answer.out.splitlines()[:4] == [
        f"5 measured runs in {own}:",
        "  run-0  2026-11-01T12:00:00Z  8 x NVIDIA H100 80GB HBM3",
        "    7b fsdp bf16, data 8, micro-batch 1",
        "    4,000 tokens/s a GPU, predicted 9,500; peak 49.00 GiB, predicted 50.00 GiB",
    ]
    assert "    used in no constant: 9 steps were measured, and at least 10 are needed" in answer.out.splitlines()
    assert answer.out.splitlines()[-6:] == [
        "",
        "constants that predictions take from these runs:",
        "  PyTorch FSDP on h100_80g (local): 0.500 of the formulas, from 3 runs that deviate by 13.5%",
        "  Megatron-Core on h100_80g (local): none yet, 1 layout of the 3 that it takes",
        "measured peaks of 5 runs: 0.98 of the prediction, the middle one",
        "a line is skipped because it is not a measured run: line 6: it is not a row of schema 1",
    ]
    document = launch("plan", "--measurements", "--json").json["measurements"]
    assert list(document) == ["file", "rows", "constants", "unreadable"]
    assert [each["why_not"] is None for each in document["rows"]] == [True, True, True, False, True]
    [constant] = document["constants"]
    assert (constant["hardware"], constant["value"], constant["runs"], constant["nodes"]) == ("h100_80g", 0.5, 3, 1)


def test_a_run_is_taken_out_by_its_name_or_directory_and_a_wrong_one_names_what_is_near(own: Path) -> None:
    assert launch("plan", "--forget", "run-1").out == f"run-1 is removed from {own}\n"
    assert [each.id for each in file.load(own).rows] == ["run-0", "run-2"]
    assert "runs on this cluster" not in " ".join(launch("check", *RUN).out.split())
    wrong = launch("plan", "--forget", "rum-2")
    assert wrong.status == 2
    assert "has no run of this name" in " ".join(wrong.err.split())
    assert "try  launch plan --forget run-2" in wrong.err
    written(own, row(2, directory="/other/run-2"))
    several = launch("plan", "--forget", "run-2")
    assert several.status == 2
    assert "several runs have this name: give its directory" in " ".join(several.err.split())
    taken = launch("plan", "--forget", "/other/run-2", "--json").json["measurements"]
    assert (taken["file"], taken["forgotten"]["directory"]) == (str(own), "/other/run-2")
    assert [each.directory for each in file.load(own).rows] == ["/home/me/runs/run-0", "/home/me/runs/run-2"]


@pytest.mark.parametrize("words", [("--forget", "run-1", "--measurements"), ("--measurements", "--vary", "precision")])
def test_what_a_search_alone_reads_is_refused(words: tuple[str, ...], own: Path) -> None:
    answer = launch("plan", *words)
    assert answer.status == 2
    assert f"{words[0]} does not search and does not use it" in " ".join(answer.err.split())
    assert len(file.load(own).rows) == 3


def test_a_cluster_s_profile_names_a_file_that_its_users_share(tmp_path: Path, own: Path) -> None:
    (tmp_path / "conf" / "cluster").mkdir(parents=True)
    (tmp_path / "conf" / "cluster" / "site.yaml").write_text("defaults: [local, _self_]\nmeasurements: shared.jsonl\n")
    assert launch("plan", "--measurements", "cluster=site").out.startswith("no measured run in shared.jsonl")
    written(tmp_path / "shared.jsonl", row(0, 0.7), row(1, 0.7), row(2, 0.7))
    words = ("check", *RUN, "cluster=site", "--json")
    assert launch(*words).json["speed"]["constant"]["value"] == 0.7
    assert launch("plan", "--forget", "run-0", "cluster=site").status == 0
    assert len(file.load(own).rows) == 3


def test_neither_the_hash_nor_the_settings_of_a_run_depend_on_the_file() -> None:
    here, there = make_spec(*RUN), make_spec(*RUN, "cluster.measurements=shared.jsonl")
    assert here.hash == there.hash
    assert lock.spec_differences(here, there) == []
