from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from launcher.charts.lines import thinned

VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=400)


@given(VALUES, st.integers(8, 100))
def test_a_thinned_curve_keeps_its_ends_its_extremes_and_its_order_and_is_as_short_as_it_was_asked_for(
    values: list[float], most: int
) -> None:
    points = list(enumerate(values))
    kept = thinned(points, most)
    assert len(kept) <= max(most, 0)
    assert [place for place, _ in kept] == sorted({place for place, _ in kept})
    assert all(points[int(place)][1] is value for place, value in kept)
    if points:
        assert (kept[0], kept[-1]) == (points[0], points[-1])
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        shown = [value for _, value in kept if math.isfinite(value)]
        assert (min(shown), max(shown)) == (min(finite), max(finite))


@given(VALUES, st.integers(8, 100))
def test_a_step_without_a_number_is_never_lost_from_its_bin(values: list[float], most: int) -> None:
    kept = thinned(list(enumerate(values)), most)
    assert any(not math.isfinite(value) for _, value in kept) == any(not math.isfinite(value) for value in values)


def test_a_spike_of_one_step_among_100_000_is_still_seen() -> None:
    points = [(step, 99.0 if step == 54_321 else 2.0) for step in range(100_000)]
    kept = thinned(points)
    assert len(kept) <= 2000
    assert (54_321, 99.0) in kept
