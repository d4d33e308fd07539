"""Speed against memory: searches for less memory, and their figure."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.planner.frontier import Frontier, frontier
from launcher.planner.layouts import Layout
from launcher.planner.planning import plan
from launcher.planner.question import ask
from launcher.views.plan import plot
from tests.support.helpers import CPU_HOST
from tests.support.layouts import FEW


@cache
def found() -> Frontier:
    question = ask(FEW, facts=CPU_HOST)
    return frontier(question, plan(question))


def speed(layout: Layout) -> float:
    assert layout.speed is not None
    return layout.speed.tokens_per_second_per_gpu


def used(layout: Layout) -> int:
    assert layout.verdict.used_bytes is not None
    return layout.verdict.used_bytes


def test_each_layout_of_the_frontier_is_slower_and_needs_less_than_the_one_before() -> None:
    fastest = found().fastest
    assert len(fastest) > 1
    for before, after in pairwise(fastest):
        assert speed(after) < speed(before)
        assert used(after) < used(before)


def test_no_other_layout_is_as_fast_with_as_little_memory() -> None:
    assert found().others
    for other in found().others:
        assert any(speed(each) >= speed(other) and used(each) <= used(other) for each in found().fastest)


def test_a_search_on_a_smaller_card_finds_nothing_faster() -> None:
    capacity = found().fastest[0].verdict.capacity_bytes
    assert capacity is not None
    most = capacity // 5
    enough = next(each for each in found().fastest if used(each) <= most)
    small = plan(ask((*FEW, f"hardware.memory_bytes={most}"), facts=CPU_HOST)).layouts
    assert small
    assert max(map(speed, small)) <= speed(enough) * (1 + 1e-9)


def test_the_figure_names_the_frontier(tmp_path: Path) -> None:
    chart = plot.chart(found())
    numbered = [row["number"] for row in chart.spec["layer"][2]["data"]["values"]]
    assert numbered == [str(number) for number in range(1, len(found().fastest) + 1)]
    points = chart.spec["layer"][1]["data"]["values"]
    assert len(points) == len(found().fastest) + len(found().others)
    for name in ("a.html", "a.svg"):
        plot.write(tmp_path / name, found())
        assert "The fastest for less memory" in (tmp_path / name).read_text().replace("the fastest", "The fastest")


def test_a_figure_of_unknown_speeds_is_refused_before_anything_is_searched(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "model=tiny", "--plot", "a.png"]) == 2
    assert "the speed is unknown: the speed of a CPU is not modelled" in " ".join(capsys.readouterr().err.split())
    assert main(["plan", *FEW, "--plot", "a.pdf"]) == 2
