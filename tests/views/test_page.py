"""The page of one run: what stands in it, whatever the run has."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from launcher.charts import library
from launcher.views import page
from launcher.views.page import asked as page_asked
from launcher.views.page import curves as page_curves
from launcher.views.page import source as page_source
from launcher.views.page import story as page_story
from tests.support.recorded_runs import recorded
from tests.support.reported_runs import BEGUN, events, ran_out, reported, write
from tests.support.slurm_runs import launch

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(library, "script", lambda: "window.vegaEmbed = () => {};")  # A second for each page.


def made(run: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    """The page's text without its scripts, and its charts by title."""
    whole = page.of_run(run)
    charts = json.loads(re.search(r'id="charts">(.*?)</script>', whole, re.DOTALL)[1])  # type: ignore[index]
    titles = [html.unescape(found) for found in re.findall(r"<h3>(.*?)</h3>", whole)]
    text = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", whole, flags=re.DOTALL)
    words = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())
    return words, dict(zip(titles, (chart["spec"] for chart in charts), strict=True))


def rows(spec: dict[str, Any], layer: int = 0) -> list[dict[str, Any]]:
    """The rows of a chart, or of one of its layers."""
    values: list[dict[str, Any]] = spec.get("data", spec["layer"][layer].get("data"))["values"]
    return values


def test_the_page_of_a_run_has_a_chart_for_everything_that_was_measured(tmp_path: Path) -> None:
    words, charts = made(reported(tmp_path / "runs" / "a"))
    assert list(charts) == [
        "Predicted and measured, by phase and pile",
        "Over time, by pile",
        "Host memory",
        "Loss, training and held out",
        "Gradient norm",
        "Learning rate",
        "Tokens a second, of all ranks",
        "Attempts",
        "Each rank's own work in a step",
    ]
    assert "launch model=tiny train.steps=40 save.every=10" in words
    assert "save.every 10 -" in words, "a setting beside its default"
    assert "The check said FITS" in words


def test_predicted_piles_stand_beside_those_of_the_fullest_rank_with_their_formulas(tmp_path: Path) -> None:
    _, charts = made(reported(tmp_path / "runs" / "a"))
    spec = charts["Predicted and measured, by phase and pile"]
    forward = [row for row in rows(spec) if row["row"] == "forward"]
    measured = {row["name"]: row["size"] for row in forward if row["of"] == "measured"}
    assert measured == {"parameters": "6.0 MiB", "activations": "10.0 MiB"}
    predicted = [row for row in forward if row["of"] == "predicted"]
    assert {"parameters", "activations", "optimizer states"} < {row["name"] for row in predicted}
    assert all(row["formula"] and row["source"] for row in predicted)
    ends = {(row["row"], row["of"]): row["said"] for row in rows(spec, 2)}
    assert ends["load", "measured"].startswith("measured 6.0 MiB (prediction +")
    assert set(ends) >= {("optimizer", "predicted"), ("forward", "measured")}


def test_memory_over_time_and_of_the_host_is_of_each_rank_and_node(tmp_path: Path) -> None:
    _, charts = made(reported(tmp_path / "runs" / "a"))
    over_time = charts["Over time, by pile"]
    assert over_time["params"][0]["bind"]["options"] == ["0", "1"]
    assert {(row["rank"], row["step"]) for row in rows(over_time)} == {(r, s) for r in "01" for s in (0, 1, 20, 40)}
    host = rows(charts["Host memory"])
    assert {row["of"] for row in host} == {"gpu01: in use", "gpu01: the largest rank's process"}


def test_a_step_with_several_lines_is_shown_once_by_its_fullest_phase_with_its_empty_piles(tmp_path: Path) -> None:
    run = reported(tmp_path / "runs" / "a")
    lines = (run / "memory.jsonl").read_text()
    peak = {"allocated_bytes": 2**20, "piles": {"gather_buffers": 2**20}}
    saved = {**json.loads(lines.splitlines()[-1]), "phases": {"checkpoint_save": peak}}
    (run / "memory.jsonl").write_text(f"{lines}{json.dumps(saved)}\n")
    last = [row for row in rows(made(run)[1]["Over time, by pile"]) if (row["rank"], row["step"]) == ("1", 40)]
    assert {row["pile"]: row["phase"] for row in last} == {"parameters": "forward", "activations": "forward"}
    first = [row for row in rows(made(run)[1]["Over time, by pile"]) if (row["rank"], row["step"]) == ("0", 0)]
    assert {row["pile"]: row["bytes"] for row in first} == {"parameters": 6.0, "activations": 0.0}


def test_a_run_of_100_000_steps_is_thinned_and_says_so_and_the_page_stays_small(tmp_path: Path) -> None:
    run = reported(tmp_path / "runs" / "a")
    write(run / "metrics.jsonl", ({"step": n, "loss": 99.0 if n == 54_321 else 2.0} for n in range(1, 100_001)))
    words, charts = made(run)
    drawn = rows(charts["Loss"])
    assert len(drawn) <= 2000
    assert {"step": 54_321, "loss": 99.0} in drawn
    assert "of 100,000 points: the minimum and maximum of each interval" in words
    assert len(json.dumps(charts)) < 500_000


def test_a_loss_that_is_no_number_is_said_and_not_drawn(tmp_path: Path) -> None:
    run = reported(tmp_path / "runs" / "a")
    write(run / "metrics.jsonl", [{"step": 1, "loss": 2.0}, {"step": 2, "loss": float("nan")}])
    words, charts = made(run)
    assert "The loss is NaN or infinite at step 2." in words
    assert "1 values are NaN or infinite and leave a gap" in words
    assert rows(charts["Loss"]) == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": None}]


def test_attempts_are_told_apart_with_their_nodes_and_what_befell_each() -> None:
    first, second = page_story.attempts(list(events()))
    assert (first.name, second.name) == ("attempt 1 on gpu01, gpu02", "attempt 2 on gpu01, gpu02")
    assert [first.waiting, first.begun, first.ended] == [BEGUN, BEGUN + 10, BEGUN + 130]
    assert [second.waiting, second.begun, second.ended] == [BEGUN + 130, BEGUN + 160, BEGUN + 300]
    assert [event["kind"] for event in second.events] == ["running", "start", "save", "straggler", "end"]


def test_an_attempt_waits_starts_and_trains_from_its_first_step_on(tmp_path: Path) -> None:
    words, charts = made(reported(tmp_path / "runs" / "a"))
    spec = charts["Attempts"]
    spans = [
        (row["row"][:9], row["name"], (row["_from"] / 1000 - BEGUN, row["_to"] / 1000 - BEGUN)) for row in rows(spec)
    ]
    assert spans[:3] == [
        ("attempt 1", "waiting", (0, 10)),
        ("attempt 1", "starting", (10, 23)),
        ("attempt 1", "training", (23, 130)),
    ]
    points = rows(spec, len(spec["layer"]) - 1)
    assert [row["what"] for row in points] == ["save", "straggler", "requeued", "save", "straggler", "finished"]
    assert "preempted after step 20" in words
    assert "rank 1 on gpu02 is slow" in words


def test_of_many_saves_some_are_shown_with_the_first_and_the_last_and_all_else(tmp_path: Path) -> None:
    run = reported(tmp_path / "runs" / "a")
    saves = [{"time": BEGUN + n, "kind": "save", "step": n, "text": "whole"} for n in range(20, 1020)]
    write(run / "events.jsonl", [*list(events())[:3], *saves, *list(events())[5:6]])
    words, charts = made(run)
    points = rows(charts["Attempts"], len(charts["Attempts"]["layer"]) - 1)
    assert 300 < len(points) < 402
    assert points[-1]["what"] == "requeued"
    assert "more are in events.jsonl" in words


def test_a_run_that_has_nothing_yet_says_what_is_missing_and_why(tmp_path: Path) -> None:
    words, charts = made(recorded(tmp_path / "runs" / "a"))
    assert list(charts) == ["Predicted and measured, by phase and pile"], "the prediction alone"
    for said in (
        "The verdict of the check is not recorded.",
        "It has no lock",
        "Nothing was measured yet",
        "the run wrote no memory.jsonl (train.log_memory_every)",
        "No speed was predicted or measured yet.",
        "the run has not started training",
        "The run has no events yet.",
        "There is no checkpoint.",
        "The run's lock cannot be read",
    ):
        assert said in words


def test_a_damaged_file_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    run = reported(tmp_path / "runs" / "a")
    (run / "plan.json").write_text("{")
    (run / "memory.jsonl").write_text('not json\n{"step": 1}\n')
    words, charts = made(run)
    assert "Parts of the record cannot be read: plan.json: it is not JSON" in words
    assert "Loss, training and held out" in charts
    (run / "spec.json").write_text("[]")
    words, charts = made(run)
    assert "This version cannot read the run's specification" in words
    assert "Gradient norm" in charts


def test_a_script_of_ones_own_has_no_prediction(tmp_path: Path) -> None:
    run = reported(tmp_path / "runs" / "a")
    content = json.loads((run / "spec.json").read_text())
    (run / "spec.json").write_text(json.dumps({**content, "script": "train.py", "script_args": ["--lr", "1e-3"]}))
    words, _ = made(run)
    assert "The check said FITS" in words, "the model beside it is named"
    assert "train.steps=40 save.every=10 -- --lr 1e-3" in words


def test_a_run_that_ran_out_of_memory_says_who_asked_for_how_much(tmp_path: Path) -> None:
    run = reported(tmp_path / "runs" / "a", now="failed")
    ran_out(run)
    words, _ = made(run)
    assert "backward of layer 3 on rank 1 (gpu01) in step 21 asked for 5.0 MiB with 1.0 MiB free" in words
    assert "out of memory <b>" in words, "as text"
    assert "launch resume" in words


def test_no_text_of_a_run_becomes_markup(tmp_path: Path) -> None:
    run = reported(tmp_path / "runs" / "a")
    write(run / "events.jsonl", ({**event, "text": HOSTILE, "node": HOSTILE} for event in events()))
    plan = json.loads((run / "plan.json").read_text())
    (run / "plan.json").write_text(json.dumps({**plan, "overrides": [HOSTILE], "verdict": HOSTILE}))
    (run / "state.json").write_text(json.dumps({"state": "failed", "reason": HOSTILE, "time": BEGUN}))
    whole = page.of_run(run)
    assert whole.count("<script") == 4
    assert "<img" not in whole
    assert "alert(1)" in whole


def test_the_line_to_paste_hides_a_secret_and_leaves_the_name_out(tmp_path: Path) -> None:
    run = reported(tmp_path / "runs" / "a")
    plan = json.loads((run / "plan.json").read_text())
    words = ["model=tiny", "run.name=a", "tracking.url=https://me:hunter2@host/x", "data.path=my file"]
    (run / "plan.json").write_text(json.dumps({**plan, "overrides": words}))
    source = page_source.read(run)
    line = page_asked.pasted(source.plan, source.settings)
    assert line is not None
    assert line.startswith("launch model=tiny ")
    assert line.endswith(" 'data.path=my file'")
    assert "hunter2" not in line


def test_curves_take_the_later_line_of_a_step_that_was_done_twice() -> None:
    lines = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 1, "loss": 2.5}]
    assert page_curves.points(lines, "loss") == [(1.0, 2.5), (2.0, 2.0)]


def test_the_command_writes_the_page_and_says_where(tmp_path: Path) -> None:
    run = reported(tmp_path / "runs" / "a")
    done = launch("report", "a")
    assert (done.status, done.err) == (0, f"launch: the page is in {tmp_path / 'a.html'}\n")
    assert (tmp_path / "a.html").read_text().startswith("<!DOCTYPE html>")
    document = launch("report", "a", "-o", "page.html", "--json").json["report"]
    assert (document["file"], document["runs"]) == ("page.html", [{"id": "a", "directory": str(run)}])
    assert document["bytes"] == (tmp_path / "page.html").stat().st_size


def test_a_page_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    reported(tmp_path / "runs" / "a")
    refused = launch("report", "a", "-o", "a.pdf")
    assert (refused.status, refused.err) == (
        2,
        "error: --output=a.pdf: the name of a page must end in .html\n  try  -o a.html\n",
    )
    assert launch("report", "b").status == 2
    refused = launch("report", "a", "-o", "none/a.html")
    assert (refused.status, refused.err) == (
        4,
        "launch: --output: none/a.html cannot be written: No such file or directory\n",
    )
