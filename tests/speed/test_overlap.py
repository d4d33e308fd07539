"""A collective beside compute."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.estimate.speed.states import exposed_seconds

seconds = st.floats(min_value=0, max_value=1e3)


def test_a_hidden_collective_costs_the_13_percent_that_galvatron_measured() -> None:
    assert exposed_seconds(1.0, 5.0) == pytest.approx(0.13)


def test_what_is_left_when_the_compute_ends_runs_alone() -> None:
    assert exposed_seconds(3.0, 1.0) == pytest.approx(2.13)
    assert exposed_seconds(3.0, 0.0) == 3.0


@given(communication=seconds, window=seconds, more=seconds)
def test_more_to_hide_never_costs_less_and_a_longer_window_never_more(
    communication: float, window: float, more: float
) -> None:
    one = exposed_seconds(communication, window)
    assert 0 <= one <= communication
    assert exposed_seconds(communication + more, window) >= one - 1e-9
    assert exposed_seconds(communication, window + more) <= one + 1e-9
