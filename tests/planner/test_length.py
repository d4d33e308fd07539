"""Tokens, days and money as they are typed, and as figures of a layout."""

from __future__ import annotations

import pytest

from launcher.base.errors import ConfigErrors
from launcher.planner import feasibility, length
from launcher.planner.judge import Preflight
from tests.support.questions import asked


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("1T", 10**12), ("500B", 5 * 10**11), ("1.5e12", 15 * 10**11), ("20_000", 20_000), ("2.5m", 2_500_000), ("7", 7)],
)
def test_tokens_are_read_as_people_write_them(text: str, tokens: int) -> None:
    assert length.tokens_of(text) == tokens


@pytest.mark.parametrize("text", ["", "T", "1Q", "-5B", "0", "0.2", "1e400", "1e30", "nan", "1 000"])
def test_what_is_no_number_of_tokens_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigErrors, match="tokens are a number from 1 to below 1e18") as caught:
        length.tokens_of(text)
    assert "--tokens 1T" in caught.value.errors[0].way_out


def test_the_options_are_words() -> None:
    assert length.words([], tokens="1B", price=2.5) == ("train.tokens=1000000000", "cluster.price_per_gpu_hour=2.5")
    assert length.words(["train.steps=5"], tokens=None, price=None) == ()


@pytest.mark.parametrize("word", ["train.steps=5", "train.tokens=9"])
def test_a_length_that_is_said_twice_is_refused(word: str) -> None:
    with pytest.raises(ConfigErrors, match="sets the same: give only one"):
        length.words([word], tokens="1B", price=None)


@pytest.mark.parametrize(("price", "typed"), [(2.5, ["cluster.price_per_gpu_hour=1"]), (-1.0, []), (float("nan"), [])])
def test_a_price_that_is_said_twice_or_makes_no_sense_is_refused(price: float, typed: list[str]) -> None:
    with pytest.raises(ConfigErrors, match="--price"):
        length.words(typed, tokens=None, price=price)


def test_a_limit_on_time_needs_a_length_and_is_more_than_nothing() -> None:
    with pytest.raises(ConfigErrors, match="whose length is not set"):
        length.require(asked(), 30)
    with pytest.raises(ConfigErrors, match="more than 0 days"):
        length.require(asked("train.steps=5"), 0)
    length.require(asked("train.steps=5"), 30)
    length.require(asked(), None)


def test_the_cost_is_the_steps_at_the_predicted_speed() -> None:
    words = ("cluster.gpus_per_node=2", "train.tokens=1000000000", "cluster.price_per_gpu_hour=2", "parallel.tensor=1")
    layout = feasibility.fastest(asked(*words), Preflight())
    assert layout is not None
    assert layout.speed is not None
    cost = length.cost_of(layout)
    assert cost is not None
    steps = -(-(10**9) // (8 * 2048))
    assert cost.days * 86_400 == pytest.approx(steps * layout.speed.step_seconds)
    assert cost.gpu_hours == pytest.approx(cost.days * 24 * 2)
    assert cost.price == pytest.approx(2 * cost.gpu_hours)
    assert length.in_time(layout, cost.days * 1.01) is True
    assert length.in_time(layout, cost.days * 0.99) is False
    assert length.in_time(layout, None) is None
