"""Numbers as people say them."""

from __future__ import annotations

import pytest

from launcher.base import units


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0718, "0.072 s"),
        (0, "0 s"),
        (45, "45 s"),
        (720, "12 min"),
        (11_100, "3 h 05 min"),
        (187_200, "2 d 4 h"),
        (None, "-"),
    ],
)
def test_times_are_read_as_people_say_them(seconds: float | None, text: str) -> None:
    assert units.duration(seconds) == text


def test_one_step_is_no_steps() -> None:
    assert [units.steps(number) for number in (1, 2, 1000)] == ["1 step", "2 steps", "1,000 steps"]


@pytest.mark.parametrize(
    ("number", "digits", "text"),
    [
        (10_871.3, 3, "10,900"),
        (7_404, 3, "7,400"),
        (99.96, 3, "100"),
        (104.4, 3, "104"),
        (2.96, 2, "3.0"),
        (0.3951, 2, "0.40"),
        (123.4, 2, "120"),
        (0.0, 3, "0"),
    ],
)
def test_a_predicted_number_has_no_more_digits_than_it_deserves(number: float, digits: int, text: str) -> None:
    assert units.rounded(number, digits) == text


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (0.76, "24% slower"),
        (0.991, "about as fast"),
        (1.0, "about as fast"),
        (1.01, "about as fast"),
        (1.03, "3% faster"),
        (2.14, "2.1 times as fast"),
    ],
)
def test_a_speed_is_compared_in_words(ratio: float, words: str) -> None:
    assert units.compared(ratio) == words


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("24h", 86_400),
        ("1d 12h", 129_600),
        ("1.5 hours", 5_400),
        ("90min", 5_400),
        ("45 s", 45),
        ("60", 3_600),
        ("2:30", 150),
        ("24:00:00", 86_400),
        ("1-12", 129_600),
        ("7-12:30:00", 649_800),
        ("soon", None),
        ("3 weeks", None),
        ("1-", None),
        ("-5", None),
        ("", None),
        ("UNLIMITED", None),
    ],
)
def test_a_time_is_read_as_people_and_slurm_write_it(text: str, seconds: int | None) -> None:
    assert units.seconds_of(text) == seconds
