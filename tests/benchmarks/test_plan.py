"""The planner's score on invented rows: what it picks, what it must not pick, and where the fastest run stands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.plan import __main__ as command
from benchmarks.plan import publishing, restricted, unrestricted
from benchmarks.plan.entries import Entry, Judged, entries
from benchmarks.plan.judges import OfFramework
from benchmarks.plan.problems import Problem, problems
from benchmarks.speed.row import Row
from tests.support.measured_lines import NANOTRON as NANOTRON_RUN
from tests.support.measured_speed import LINE, write_lines

SMALL = {
    **LINE, "gpus": "2", "gpus_per_node": "8", "model": "Llama-2-7B", "hidden": "1024", "layers": "4", "heads": "8",
    "kv_heads": "8", "ffn": "2816", "seq": "1024", "global_batch": "4", "problem": "mine|small|2gpu",
}  # fmt: skip
COPIES, TENSOR, STAGES = (
    {"id": name, "dp": dp, "tp": tp, "pp": pp}
    for name, dp, tp, pp in (("copies", "2", "1", "1"), ("tensor", "1", "2", "1"), ("stages", "1", "1", "2"))
)
OUT_OF_MEMORY = {"tokens_s_gpu": "", "measured": "OOM", "notes": "OOM"}


def folder_of(folder: Path, *changes: Mapping[str, str], of: Mapping[str, str] = SMALL) -> Path:
    write_lines(folder / "throughput.csv", [{**of, **change} for change in changes])
    return folder


def the_problem(folder: Path, *changes: Mapping[str, str], of: Mapping[str, str] = SMALL) -> Problem:
    (problem,) = problems(folder_of(folder, *changes, of=of))
    return problem


def measured(layout: Mapping[str, str], speed: float) -> Mapping[str, str]:
    return {**layout, "tokens_s_gpu": str(speed)}


def test_the_pick_is_the_share_of_the_best_measured_speed(tmp_path: Path) -> None:
    runs = [measured(COPIES, 80), measured(TENSOR, 100), measured(STAGES, 50)]
    found = restricted.pick(the_problem(tmp_path, *runs))
    assert (found.row.name, found.verdict, found.share) == ("copies", "fits", 0.8)


def test_two_layouts_are_no_problem_however_many_ran_out_of_memory(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, measured(COPIES, 1), measured(TENSOR, 1), {**STAGES, **OUT_OF_MEMORY})
    assert problems(folder) == []


def test_a_pick_that_is_stated_to_have_run_out_of_memory_is_counted(tmp_path: Path) -> None:
    out = {**COPIES, "id": "out", "micro_batch": "2", **OUT_OF_MEMORY}
    runs = [measured(COPIES, 80), measured(TENSOR, 100), measured(STAGES, 50), out]
    problem = the_problem(tmp_path, *runs)
    (entry, every) = entries([Judged(problem=problem, pick=restricted.pick(problem))])
    assert (entry.problems, entry.oom_picked, entry.pick, entry.pick_worst) == (1, 1, None, 0.0)
    assert (every.family, every.oom_picked) == ("all", 1)


def test_where_nothing_fits_the_run_that_lacks_least_is_taken(tmp_path: Path) -> None:
    large = {**SMALL, "hidden": "8192", "layers": "80", "heads": "64", "kv_heads": "64", "ffn": "28672"}
    problem = the_problem(tmp_path, measured(COPIES, 80), measured(TENSOR, 100), measured(STAGES, 50), of=large)
    found = restricted.pick(problem)
    assert (found.row.name, found.verdict) == ("tensor", "does_not_fit")
    (entry, _) = entries([Judged(problem=problem, pick=found)])
    assert entry.nothing_fits == 1


def test_uncertain_runs_and_those_of_experts_are_entries_of_their_own(tmp_path: Path) -> None:
    rows = [{**measured(each, 1), "soft": "True"} for each in (COPIES, TENSOR, STAGES)]
    problem = the_problem(tmp_path, *rows)
    assert (problem.family, problem.counted) == ("mine (soft)", False)
    (entry,) = entries([Judged(problem=problem, pick=restricted.pick(problem))])
    assert entry.family == "mine (soft)"


def test_runs_of_nanotrons_broken_pipeline_have_no_speed_but_may_have_run_out_of_memory(tmp_path: Path) -> None:
    run = {**NANOTRON_RUN, "n_gpus": "8", "tokens_per_s_per_gpu": "10", "model_name": "a", "gpu": "H100-80GB"}
    broken = {**run, "id": "broken", "dp": "4", "tp": "1", "pp": "2"}
    rows = [{**run, "id": f"tp{tp}", "dp": str(8 // tp), "tp": str(tp), "pp": "1"} for tp in (1, 2, 4)]
    write_lines(tmp_path / "nanotron_playbook.csv", [*rows, broken, {**broken, "id": "out", "oom": "true"}])
    (problem,) = problems(tmp_path)
    assert [row.name for row in problem.rows] == ["tp1", "tp2", "tp4", "out"]
    assert [row.oom for row in problem.rows] == [False, False, False, True]
    assert (problem.family, problem.counted) == ("nanotron", True)


def test_the_fastest_run_has_a_place_among_the_ideas_of_the_whole_space(tmp_path: Path) -> None:
    runs = [measured(COPIES, 100), measured(TENSOR, 90), measured(STAGES, 50)]
    problem = the_problem(tmp_path, *runs)
    whole, as_run = unrestricted.search(problem), unrestricted.search(problem, as_run=True)
    assert whole.standing in ("shown", "idea")
    assert whole.considered > as_run.considered > 0
    assert whole.distance is not None
    assert as_run.distance is not None
    assert whole.distance >= as_run.distance >= 1.0


def test_a_layout_that_the_engine_does_not_have_is_outside_of_the_space(tmp_path: Path) -> None:
    wide = {**SMALL, "gpus": "4", "gpus_per_node": "2", "dp": "1", "tp": "4", "pp": "1"}
    rows = [measured(wide, 4000), {**wide, "id": "b", "dp": "4", "tp": "1"}, {**wide, "id": "c", "dp": "2", "tp": "2"}]
    assert unrestricted.search(the_problem(tmp_path, *rows), as_run=True).standing == "outside"


def answers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> Sequence[Any]:
    monkeypatch.setattr("sys.argv", ["benchmarks.plan", *words, "--json"])
    assert command.main() == 0
    found: list[Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_command_prints_the_keys_of_the_contract(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_of(tmp_path, measured(COPIES, 100), measured(TENSOR, 90), measured(STAGES, 50))
    rows = tmp_path / "rows"
    (mine, every) = answers(capsys, monkeypatch, "--data", str(tmp_path), "--rows", str(rows))
    assert {"family", "problems", "pick", "pick_worst", "oom_picked", "winner_in_ten"} <= mine.keys()
    assert (mine["family"], mine["pick"], mine["winner_in_ten"], every["family"]) == ("mine", 1.0, 1.0, "all")
    assert json.loads(rows.read_text())["picked"]["id"] == "copies"


def test_the_scoreboard_has_a_line_for_each_source_and_their_places() -> None:
    entry = Entry(
        family="mine", problems=3, pick=0.98, pick_worst=0.9, oom_picked=0, nothing_fits=1, winner_in_ten=0.5,
        distance=1.1, standings={"shown": 2, "outside": 1},
    )  # fmt: skip
    lines = list(publishing.document([entry]))
    assert "| mine | 3 | 0.980 | 0.900 | 0 | 1 | 50% | 1.100 | - | - |" in lines
    assert "| mine | 2 | 0 | 0 | 0 | 1 |" in lines


@pytest.mark.parametrize(
    ("less", "more"),
    [
        (
            "kernel: flash_attention2 + RMS kernel; sequence parallel: 0",
            "kernel: flash_attention2; sequence parallel: 0",
        ),
        ("kernel: flash_attention2; sequence parallel: 0", "kernel: torch; sequence parallel: 0"),
    ],
)
def test_a_row_that_names_a_kernel_takes_the_memory_of_this_kernel(tmp_path: Path, less: str, more: str) -> None:
    rows = [
        {**measured(each, 1), "framework": "Aleph Alpha AA-Scaling", "zero": "ZeRO-1", "notes": notes, "id": notes}
        for notes, each in ((less, COPIES), (more, COPIES), (less, TENSOR), (more, STAGES))
    ]
    problem = the_problem(tmp_path, *rows)
    first, second = (_needs(row) for row in problem.rows[:2])
    assert first < second


def _needs(row: Row) -> int:
    assert row.spec is not None
    used = OfFramework(row, row.spec).verdict(row.spec).used_bytes
    assert used is not None
    return used
