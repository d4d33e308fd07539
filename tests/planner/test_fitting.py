"""The part of the space that tells if anything fits, against all of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from launcher.planner import feasibility, planning
from launcher.planner.judge import Preflight
from launcher.planner.keys import Settings
from launcher.planner.question import Question
from launcher.planner.space import Space
from launcher.spec import RunSpec
from launcher.spec.edit import changed_at
from tests.support.questions import asked, card

JUDGE = Preflight()


def fits_at_all(question: Question) -> bool:
    """True if any layout of the whole space fits for certain."""
    for opening in question.openings:
        space = Space.of(opening.spec, opening.fixed, question.choices, JUDGE.errors)
        for degrees in space.degrees(JUDGE.errors):
            for variant in space.variants(degrees, JUDGE.errors):
                if any(is_certain(changed_at(variant, settings)) for settings in all_savings(space)):
                    return True
    return False


def all_savings(space: Space) -> Iterator[Settings]:
    """All of what saves memory, in every combination."""
    for place in space.savings.places:
        yield from space.savings.at(*place)


def is_certain(spec: RunSpec) -> bool:
    """True if a layout is valid and fits for certain."""
    return next(iter(JUDGE.errors(spec)), None) is None and JUDGE.verdict(spec).name == "fits"


@pytest.mark.parametrize(("engine", "cards"), [("parallel=fsdp", (10, 16)), ("backend=megatron", (18, 24))])
def test_a_part_of_the_space_tells_if_anything_of_all_of_it_fits(engine: str, cards: tuple[int, int]) -> None:
    words = ("cluster.gpus_per_node=4", "parallel.tensor=1,4", "checkpointing.mode=none,full")
    answers = set()
    for quarters in cards:
        question = asked(*words, card(quarters), engine=engine)
        expected = fits_at_all(question)
        assert (feasibility.attempt(question, JUDGE).fits is not None) == expected
        answers.add(expected)
    assert answers == {False, True}


def test_what_is_typed_stays() -> None:
    words = ("cluster.gpus_per_node=4", "train.micro_batch_size=2", "parallel.virtual_pipeline=1,2")
    found = feasibility.attempt(asked(*words), JUDGE).fits
    assert found is not None
    assert found.micro_batch_size == 2


def test_the_fastest_is_the_first_of_the_plan() -> None:
    question = asked("cluster.gpus_per_node=4", "parallel.tensor=1,2")
    found = feasibility.fastest(question, JUDGE)
    assert found is not None
    assert found.overrides == planning.plan(question).layouts[0].overrides


def test_nothing_is_fastest_where_nothing_fits() -> None:
    assert feasibility.fastest(asked("cluster.gpus_per_node=1", card(4), "parallel.tensor=1"), JUDGE) is None


def test_the_reason_names_the_place_and_the_bytes_of_the_layout_that_comes_nearest() -> None:
    question = asked("cluster.gpus_per_node=1", card(8))
    nearest = feasibility.closest(question, JUDGE)
    assert nearest is not None
    assert nearest.verdict.excess_bytes > 0
    assert "too small on a GPU by" in feasibility.lacks(question, JUDGE)
    assert feasibility.lacks(asked("cluster.gpus_per_node=1"), JUDGE) == ""


def test_where_no_layout_is_valid_the_rule_is_the_reason() -> None:
    question = asked("train.sequence_length=16384")
    assert not feasibility.is_valid(question, JUDGE)
    assert "the model has positions for 2048 tokens" in feasibility.lacks(question, JUDGE)
