"""The time of a step in the figure: its parts, and a pipeline's passes by stage."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from launcher.estimate.speed.result import SpeedEstimate
from launcher.estimate.speed.terms import PARTS
from launcher.preflight import assess
from launcher.preflight.assess import Assessment
from launcher.views.check import plot
from launcher.views.check import time as plot_gantt
from launcher.views.check import time as plot_time
from launcher.views.check.time import Gantt
from tests.support.helpers import make_spec
from tests.support.rule_cases import NODE

STAGES = (*NODE, "model=7b", "parallel=3d", "cluster.nodes=4", "parallel.pipeline=4")
RUNS = {
    "alone": (*NODE, "model=llama3_8b", "parallel=fsdp"),
    "few": (*STAGES, "train.global_batch_size=4"),
    "chunks": (*STAGES, "train.global_batch_size=8", "parallel.virtual_pipeline=2", "parallel.schedule=interleaved"),
    "many": (*STAGES, "train.global_batch_size=512"),
    "cpu": ("model=tiny", "parallel=fsdp"),
}
PIPELINES = ("few", "chunks", "many")


@cache
def judged(name: str) -> Assessment:
    return assess.assess(make_spec(*RUNS[name]))


def predicted(name: str) -> SpeedEstimate:
    speed = judged(name).speed
    assert speed is not None
    return speed


def drawn(name: str) -> Gantt:
    found = plot_gantt.gantt(judged(name).spec, predicted(name))
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["alone", *PIPELINES])
def test_the_bars_are_the_parts_of_the_step_in_their_order_one_after_the_other(name: str) -> None:
    speed = predicted(name)
    least = 0.0005 * speed.step_seconds
    parts = [part for part in plot_time.step_parts(speed) if max(part.exposed, part.hidden) >= least]
    assert [part.name for part in parts] == sorted((part.name for part in parts), key=PARTS.index)
    of, unit = plot_time.unit(speed.step_seconds)
    chart = plot_time.chart(parts, speed.step_seconds, of, unit)
    pieces, texts = (layer["data"]["values"] for layer in chart["layer"][:2])
    assert len(pieces) == len(parts) > 3
    assert all(before["_to"] == pytest.approx(after["_from"]) for before, after in pairwise(pieces))
    assert pieces[-1]["_to"] * of == pytest.approx(speed.step_seconds, rel=0.002), "what is too short is left out"
    said = [f"{plot_time.seconds_text(part.exposed)}, {part.exposed / speed.step_seconds:.1%}" for part in parts]
    assert all(text["said"].startswith(words) for text, words in zip(texts, said, strict=True))
    assert all(piece["formula"] and piece["source"] for piece in pieces)


def test_every_part_has_a_colour_and_those_of_a_pipelines_rows_differ_in_lightness() -> None:
    assert list(plot_time.COLOURS) == list(PARTS)
    legend = plot_gantt.legend(drawn("few"))
    colours = [legend[name] for name in ("forward pass", "backward pass", "idle")]
    grey = sorted(sum(int(colour[at : at + 2], 16) for at in (1, 3, 5)) for colour in colours)
    assert all(after - before > 100 for before, after in pairwise(grey))


@pytest.mark.parametrize("name", PIPELINES)
def test_each_stage_is_drawn_from_the_steps_start_to_its_end_without_a_hole(name: str) -> None:
    found = drawn(name)
    assert len(found.rows) == 4
    for row in found.rows:
        assert row[0].start == 0.0
        assert row[-1].end == pytest.approx(found.end)
        assert all(before.end == pytest.approx(after.start) for before, after in pairwise(row))
    assert found.end == pytest.approx(predicted(name).step_seconds, rel=0.06), "filled by order, not by closed form"


@pytest.mark.parametrize("name", PIPELINES)
def test_each_stage_runs_each_micro_batch_forwards_and_backwards_through_its_chunks(name: str) -> None:
    spec = judged(name).spec
    letters = "ab" if name == "chunks" else [""]
    expected = sorted(f"{n + 1}{letter}" for n in range(spec.gradient_accumulation) for letter in letters)
    for row in drawn(name).rows:
        for kind in ("forward", "backward"):
            assert sorted(bar.label for bar in row if bar.name == kind) == expected


def test_of_many_micro_batches_the_first_and_the_last_are_drawn_and_the_caption_says_so() -> None:
    assert drawn("few").gap is None
    found = drawn("many")
    assert found.gap is not None
    start, end = found.gap
    assert 0 < start < end < found.end
    said = plot_gantt.caption(judged("many").spec, found)
    assert said == (
        "1F1B: 512 micro-batches on 4 stages. A pass includes its communication and the wait for slower GPUs. Only the"
        f" first and the last micro-batches are drawn: {plot_time.seconds_text(end - start)} between them are left out."
    )


def test_the_passes_are_drawn_at_their_times_and_behind_the_break_moved_by_what_is_left_out() -> None:
    few, many = drawn("few"), drawn("many")
    chart = plot_gantt.gantt_chart(judged("few").spec, few)
    of, _ = plot_time.unit(few.end)
    pieces = chart.spec["layer"][0]["data"]["values"]
    assert len(pieces) == sum(len(row) for row in few.rows)
    assert max(piece["_to"] for piece in pieces) * of == pytest.approx(few.end)
    assert many.gap is not None
    x = plot_gantt.gantt_chart(judged("many").spec, many).spec["layer"][0]["encoding"]["x"]
    of, _ = plot_time.unit(many.end)
    assert x["scale"]["domain"][1] * of < many.end - 0.9 * (many.gap[1] - many.gap[0])
    assert x["axis"]["labelExpr"].startswith("format(datum.value > ")
    assert len(x["axis"]["values"]) > 4


def test_a_run_without_stages_or_of_unknown_speed_has_no_rows_of_stages() -> None:
    assert plot_gantt.gantt(judged("alone").spec, predicted("alone")) is None
    assert judged("cpu").speed is None
    for name, panels in (("cpu", 1), ("alone", 2), ("few", 4)):
        assessment = judged(name)
        assert assessment.estimate is not None
        columns = assess.broken_down(assessment.spec, assessment.estimate)
        assert len(plot.charts(assessment, columns)) == panels


def test_the_page_has_a_row_a_part_with_its_formula(tmp_path: Path) -> None:
    assessment = judged("few")
    assert assessment.estimate is not None
    plot.write(tmp_path / "run.html", assessment, assess.broken_down(assessment.spec, assessment.estimate))
    page = (tmp_path / "run.html").read_text()
    speed = predicted("few")
    assert page.count("<h2>The time of a step</h2>") == 1
    assert f'<th scope="row">bubble</th><td>{plot_time.seconds_text(speed.exposed("bubble"))}</td>' in page


def test_seconds_are_said_in_the_unit_that_suits_them() -> None:
    assert [plot_time.seconds_text(seconds) for seconds in (12.344, 0.0171, 0.000413)] == [
        "12.3 s",
        "17.1 ms",
        "413 us",
    ]
