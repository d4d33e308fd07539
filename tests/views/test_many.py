"""`launch report` of several runs and of sweeps: what stands on the page; what it does in a browser is tested there."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from launcher.rundir import state
from launcher.views.page import curves, many
from tests.support.recorded_runs import line, predicted, recorded, swept
from tests.support.slurm_runs import launch

SMALL = ("train.sequence_length=32", "train.steps=40")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def text(page: str) -> str:
    """What a page says outside of its scripts and styles, the tags left out."""
    shown = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", shown)).split())


def test_runs_of_any_kind_and_state_are_on_one_page_by_what_they_have(tmp_path: Path) -> None:
    steps = [line(step, 5 - step / 10) for step in range(1, 41)]
    recorded(tmp_path / "runs" / "a", *SMALL, steps=steps, now="finished", speed=predicted(55.0))
    recorded(tmp_path / "runs" / "b", "optimizer.lr=1e-3", *SMALL, steps=steps[:20], now="running")
    recorded(tmp_path / "runs" / "waits", "model=125m", *SMALL, now="failed", reason="no such node")
    recorded(tmp_path / "runs" / "own", "script=train.py", steps=[{"step": 5, "loss": 4.0}], now="finished")
    (recorded(tmp_path / "runs" / "old") / "spec.json").write_text('{"schema": 0, "model": {"name": "x"}}')
    (recorded(tmp_path / "runs" / "cut") / "job.json").write_text('{"nodes": ')
    said = launch("report", "a", "b", "waits", "own", "old", "cut", "--json")
    assert said.status == 0, said.err
    answer = said.json["report"]
    assert (Path(answer["file"]).name, len(answer["runs"])) == ("report.html", 6)
    page = text(Path(answer["file"]).read_text())
    assert "waits has no loss in its metrics; it is failed: no such node" in page
    assert "of cut not all is known" in page
    assert "Not in the table, since they follow from others:" in page
    assert "55 " in page, "the predicted speed stands beside the measured one"
    assert "launch model=tiny cluster.gpus_per_node=2 optimizer.lr=1e-3" in Path(answer["file"]).read_text()


def test_of_many_runs_the_curves_of_the_lowest_losses_are_shown_and_all_are_in_the_table(tmp_path: Path) -> None:
    runs = []
    for number in range(many.MOST_CURVES + 2):
        loss = float("nan") if number == 0 else 10.0 - number / 10
        steps = [line(1, 11.0), line(2, loss)]
        runs.append(recorded(tmp_path / "runs" / f"r{number:02d}", steps=steps, now="finished"))
    page = many.several(runs)
    assert f"The {many.MOST_CURVES} runs of the lowest loss, of {many.MOST_CURVES + 2} with metrics." in page
    shown = re.findall(r'data-series="(r\d\d)"', page)
    assert shown == [f"r{number:02d}" for number in range(2, many.MOST_CURVES + 2)]
    assert page.count("<tr data-name=") == len(runs)


def test_a_sweep_has_its_points_its_best_one_and_what_was_left_out(tmp_path: Path) -> None:
    swept(tmp_path / "runs" / "s", {"1e-3": 2.0, "1e-4": 3.0, "1e-1": None})
    assert launch("report", "s").err == f"launch: the page is in {tmp_path / 's.html'}\n"
    page = (tmp_path / "s.html").read_text()
    said = text(page)
    assert "3 points: 2 finished, 1 left out." in said
    line = "launch model=tiny cluster.gpus_per_node=2 optimizer.lr=1e-3"
    assert f"Lowest loss (mean of the last tenth of the logged steps): 000, 2.0000 {line}" in said
    assert "1: too large" in said
    assert page.count("<tr data-name=") == 3
    assert 'data-note="left out: too large"' in page


def test_a_sweep_of_which_nothing_is_run_has_a_page_and_runs_beside_a_sweep_are_overlaid(tmp_path: Path) -> None:
    (tmp_path / "runs" / "none").mkdir(parents=True)
    swept(tmp_path / "runs" / "none", {"1e-3": None})
    assert launch("report", "none").status == 0
    assert "Fewer than two settings vary" in (tmp_path / "none.html").read_text()
    swept(tmp_path / "runs" / "s", {"1e-3": 2.0})
    recorded(tmp_path / "runs" / "a", steps=[line(1, 3.0)], now="finished")
    assert launch("report", "s", "a", "-o", "both.html").status == 0
    assert "2 runs: s/000, a" in (tmp_path / "both.html").read_text()


def test_a_damaged_sweep_is_refused_with_the_file(tmp_path: Path) -> None:
    (swept(tmp_path / "runs" / "s", {"1e-3": 2.0}) / state.SWEEP).write_text(json.dumps({"points": [{"id": 3}]}))
    said = launch("report", "s")
    assert (said.status, "sweep.json" in said.err) == (4, True)


def test_of_a_step_that_was_done_twice_the_last_line_counts_and_gaps_are_told(tmp_path: Path) -> None:
    rows = [line(1, 5.0), line(2, 4.0), line(2, 3.0), line(3, float("inf"))]
    curve = curves.read(recorded(tmp_path / "runs" / "a", steps=rows), "a", 64)
    assert curve.points["loss"] == [(1, 5.0), (2, 3.0), (3, float("inf"))]
    [loss, by_tokens, *_] = curves.overlaid([curve], by_tokens=True)
    assert (loss.title, by_tokens.title) == ("training loss by step", "training loss by tokens")
    assert loss.note == "1 values are NaN or infinite and leave a gap"
    assert [row["tokens"] for row in by_tokens.spec["data"]["values"]] == [64, 128, 192]
