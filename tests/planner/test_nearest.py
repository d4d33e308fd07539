"""What would help where nothing fits."""

from __future__ import annotations

from launcher.planner import feasibility
from launcher.planner.judge import Preflight
from launcher.planner.smallest import nearest, sized
from tests.support.questions import asked, card

JUDGE = Preflight()
SMALL = ("parallel.tensor=1", "parallel.pipeline=1")


def test_the_smallest_cluster_is_told_with_a_layout_that_fits_there() -> None:
    question = asked(card(14), *SMALL, "cluster.nodes=1", "cluster.gpus_per_node=4")
    found = nearest(question, JUDGE)
    assert found.size is not None
    assert found.size.gpus == 8
    assert feasibility.attempt(sized(question, found.size), JUDGE).fits is not None
    assert found.layout is not None
    assert found.layout.spec.gpus == 8
    assert found.layout.verdict.name == "fits"


def test_the_changes_make_the_layout_fit_that_lacks_least() -> None:
    question = asked(card(16), *SMALL, "cluster.gpus_per_node=1")
    found = nearest(question, JUDGE)
    assert found.closest is not None
    assert found.closest.verdict.excess_bytes > 0
    assert found.fixes
    for fix in found.fixes:
        assert fix.spec.gpus == 1
        again = question.compose((*found.closest.overrides, *fix.overrides)).require()
        assert JUDGE.verdict(again).fits
        assert next(iter(JUDGE.errors(again)), None) is None


def test_where_no_layout_is_valid_there_is_a_rule_and_no_layout() -> None:
    found = nearest(asked("train.sequence_length=16384", "cluster.gpus_per_node=1"), JUDGE)
    assert (found.closest, found.size, found.fixes) == (None, None, ())
    assert "positions for 2048 tokens" in found.rule
