"""`make test-all` runs every value and every pair of choices of a matrix, continuous integration every choice."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import cover

_CHOICES = st.sampled_from([f"{dimension}={value}" for dimension in "abc" for value in ("x", "y")])
_SIZES = st.sampled_from([f"size={value}" for value in range(4)])
_CASES = st.dictionaries(
    st.sampled_from([f"case{number}" for number in range(8)]),
    st.lists(_CHOICES | _SIZES, min_size=1, max_size=6, unique=True),
    min_size=1,
)


def _run(cases: dict[str, list[str]], *kept: str, left_out: tuple[str, ...] = ("matrix",)) -> list[str]:
    """The cases that a session without these markers runs; `make test-all`, if it is but ``matrix``."""
    parameters = cover.marked(cases, cover.both(cases, kept))
    assert len(parameters) == len(cases)
    marks = [() if isinstance(each, str) else [mark.name for mark in each.marks] for each in parameters]
    return [name for name, names in zip(cases, marks, strict=True) if not {*names} & {*left_out}]


@settings(max_examples=25)
@given(cases=_CASES)
def test_continuous_integration_runs_every_choice_in_some_of_these_cases(cases: dict[str, list[str]]) -> None:
    first = _run(cases, left_out=("matrix", "full"))
    assert {*first} <= {*_run(cases)}
    choices = {part for parts in cases.values() for part in parts if not part.startswith("size")}
    assert choices <= {part for name in first for part in cases[name]}


@settings(max_examples=25)
@given(cases=_CASES)
def test_every_value_and_every_pair_of_choices_of_all_cases_is_in_one_that_is_chosen(
    cases: dict[str, list[str]],
) -> None:
    found = [cases[name] for name in _run(cases)]
    for parts in cases.values():
        for part in parts:
            assert any(part in other for other in found), part
        for pair in combinations([part for part in parts if not part.startswith("size")], 2):
            assert any({*pair} <= {*other} for other in found), pair


@settings(max_examples=25)
@given(cases=_CASES)
def test_no_case_is_chosen_whose_values_and_pairs_others_have(cases: dict[str, list[str]]) -> None:
    found = _run(cases)
    for name in found:
        others = [cover.pairs(cases[other]) for other in found if other != name]
        assert not cover.pairs(cases[name]) <= frozenset().union(*others)


@settings(max_examples=25)
@given(cases=_CASES)
def test_what_others_need_is_kept(cases: dict[str, list[str]]) -> None:
    assert set(cases) >= {*_run(cases, *cases)} == set(cases)


def test_a_degree_of_parallelism_is_a_choice_and_a_batch_a_size() -> None:
    cases = {
        "both": ["parallel.tensor=2", "train.micro_batch_size=4", "precision=bf16"],
        "batch": ["train.micro_batch_size=4", "precision=fp16"],
        "degree": ["parallel.tensor=2", "precision=fp16"],
    }
    assert _run(cases) == ["both", "degree"]


def test_of_equals_the_cheaper_one_is_chosen() -> None:
    cases = {"four": ["a=x"], "two": ["a=x"]}
    assert cover.chosen(cases, cost=lambda name: {"four": 4, "two": 2}[name]) == ["two"]
    assert cover.chosen(cases) == ["four"]


def test_a_fixture_learns_the_values_of_this_session_and_this_file_alone() -> None:
    def item(path: str, **params: str) -> Any:
        return SimpleNamespace(path=path, callspec=SimpleNamespace(params=params))

    items = [item("a", name="x", mode="z"), item("b", name="y"), SimpleNamespace(path="a")]
    request = SimpleNamespace(session=SimpleNamespace(items=items), node=SimpleNamespace(path="a"))
    assert cover.asked(cast("pytest.FixtureRequest", request)) == {"x", "z"}
