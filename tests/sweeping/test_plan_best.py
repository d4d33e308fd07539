"""``plan=best`` in sweeps: each point composed with its own best layout, which its record then holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.actions import sweep as _sweeping
from launcher.cli import main
from launcher.config.catalog import Catalog
from launcher.planner import best
from launcher.rundir import contents
from launcher.rundir.contents import BadRecord
from launcher.sweeping import sweep
from launcher.sweeping.point import Point, read_point
from launcher.sweeping.sweep import Sweep
from tests.support.helpers import CPU_HOST

WORLD = ("hardware=h100_80g", "cluster.nodes=1", "cluster.gpus_per_node=2")
FIXED = (*WORLD, "parallel=fsdp", "train.global_batch_size=4", "train.micro_batch_size=1", "checkpointing=none")
HERE = ("model=tiny", "cluster.gpus_per_node=2", "parallel=fsdp", "train.global_batch_size=4", "train.loss=full")


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[dict[str, Any]]]:
    status = main(["check", "-m", "--json", *words])
    return status, json.loads(capsys.readouterr().out)["points"]


def asked(*words: str, folder: Path) -> Sweep:
    return sweep.read(words, catalog=Catalog(folder=folder), facts=CPU_HOST, force=False)


def test_each_point_has_its_own_layout_and_its_words_compose_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    status, points = checked(capsys, *FIXED, "train.loss=full", "plan=best", "model=350m,7b")
    assert status == 0
    small, large = points
    assert small["layout"] != large["layout"]
    for point in points:
        assert point["overrides"][1:] == point["layout"] != []
        words = [*FIXED, "train.loss=full", *point["overrides"]]
        assert main(["check", *words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["peak"]["allocated_bytes"] == point["predicted_bytes"]
        assert main(["check", "-m", *FIXED, point["overrides"][0], "--json"]) in (0, 3)
        [plain] = json.loads(capsys.readouterr().out)["points"]
        assert plain["layout"] == []
        if plain["verdict"] == "fits":
            assert point["predicted_tokens_per_second_per_gpu"] > plain["predicted_tokens_per_second_per_gpu"]


def test_the_table_names_the_layout_below_the_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-m", *FIXED, "train.loss=full", "plan=best", "model=350m"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].strip() == "model=350m" or lines[2].strip().startswith("layout: ")
    assert any(line.strip().startswith("layout: ") for line in lines)


def test_a_point_for_which_nothing_fits_is_left_out_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    status, points = checked(capsys, *FIXED, "plan=best", "model=tiny,llama3_405b", "train.loss=full")
    assert (status, [point["verdict"] for point in points]) == (0, ["fits", "does_not_fit"])
    assert points[1]["reason"].startswith("none of ")
    assert "layouts fits (" in points[1]["reason"]
    assert "; as typed: device needs " in points[1]["reason"]


def test_a_point_that_is_no_question_is_left_out_with_its_errors(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*FIXED, "model=tiny", "train.loss=full", "plan=best")
    status, points = checked(capsys, *words, "train.sequence_length=64,-1", "optimizer.lr=0.1,-1")
    assert status == 0
    assert [point["verdict"] for point in points] == ["fits", "invalid", "invalid", "invalid"]
    assert points[1]["reason"].startswith("optimizer.lr=-1")
    assert points[2]["reason"].startswith("train.sequence_length=-1")
    assert main(["check", "-m", *words, "plan=fastest", "train.seed=1,2"]) == 2
    assert "try  plan=best" in capsys.readouterr().err


def test_a_recipes_axes_are_those_of_the_points(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text(
        "schema: 1\nsummary: a test\nchoose: {model: tiny, hardware: h100_80g}\nset: {cluster.gpus_per_node: 2, "
        "cluster.nodes: 1, train.global_batch_size: 4, train.loss: full}\nsweep: {parallel: [ddp, fsdp]}\n"
    )
    swept = asked("recipe=mine", "plan=best", folder=tmp_path)
    points = [swept.point(number, overrides)[0] for number, overrides in enumerate(swept.axes.grid())]
    assert [point.proposed for point in points] == [("parallel=ddp",), ("parallel=fsdp",)]
    assert all(point.verdict == "fits" and point.layout for point in points)


def test_the_record_holds_the_layout_so_that_going_on_searches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    swept = asked(*HERE, "plan=best", "train.seed=1,2", folder=tmp_path)
    points = _sweeping._judge_grid(swept, tmp_path / "s", swept.axes.grid())
    assert all(point.kept and point.layout for point in points)
    assert points[0].overrides == ("train.seed=1", *points[0].layout)
    monkeypatch.setattr(best, "ask", None)
    again, recorded = sweep.load(tmp_path / "s", catalog=Catalog(folder=tmp_path), facts=CPU_HOST)
    assert [(point.overrides, point.layout) for point in recorded] == [
        (point.overrides, point.layout) for point in points
    ]
    assert again.searches is not None
    assert again.words == (*HERE, "plan=best", "train.seed=1,2")
    typed = contents.known(tmp_path / "s" / "000", contents.PLAN)["overrides"]
    assert typed == [*HERE, *points[0].overrides]
    assert sweep.words(tmp_path / "s", sweep.row(tmp_path / "s", points[0])) == typed


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_sampler_knows_its_proposals_without_their_layouts(
    sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_sweeping, "_UNLUCKY", 16)
    words = (*HERE, "plan=best", "optimizer.lr=0.1,0.2", f"sweep.sampler={sampler}", "sweep.budget=3")
    swept, points = asked(*words, folder=tmp_path), list[Point]()
    batch = _sweeping._propose(swept, tmp_path / "s", points, 3)
    assert "16 proposals in a row were known or left out" in capsys.readouterr().err
    assert sorted(point.proposed for point in batch) == [("optimizer.lr=0.1",), ("optimizer.lr=0.2",)]
    assert all(point.layout for point in batch)
    resumed, known = sweep.load(tmp_path / "s", catalog=Catalog(folder=tmp_path), facts=CPU_HOST)
    assert _sweeping._propose(resumed, tmp_path / "s", known, 3) == []


def test_a_layout_that_is_no_end_of_its_points_words_is_no_record(tmp_path: Path) -> None:
    row: dict[str, Any] = {"id": "000", "verdict": "fits", "overrides": ["a.b=1", "c.d=2"], "reason": None}
    row |= dict.fromkeys(("predicted_bytes", "needed_bytes", "largest_pile", "predicted_tokens_per_second_per_gpu"))
    assert read_point(tmp_path, row | {"layout": ["c.d=2"]}).proposed == ("a.b=1",)
    for wrong in ("c.d=2", ["a.b=1"], ["x", "a.b=1", "c.d=2"]):
        with pytest.raises(BadRecord):
            read_point(tmp_path, row | {"layout": wrong})
