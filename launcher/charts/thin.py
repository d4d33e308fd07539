"""Curves of many steps thinned to what a screen can show, without losing a peak."""

from __future__ import annotations

import math
from collections.abc import Sequence

MOST = 2000
"""Points of a curve at most: more than a screen is wide, so that it can be zoomed, and a page stays small."""


def thinned(points: Sequence[tuple[float, float]], most: int = MOST) -> list[tuple[float, float]]:
    """At most ``most`` of the points, in their order: of each bin of them the least and the greatest value.

    The first and the last point stay, and the least and the greatest of all, so that a spike of one step is still
    seen. Values that are no number (NaN, infinity) say that something went wrong: of each bin the first one stays,
    in place of none of the others.

    Args:
        points: Place and value, sorted by place.
        most: At least 8.
    """
    if len(points) <= most:
        return list(points)
    bins = (most - 2) // 3
    inner = range(1, len(points) - 1)
    chosen = {0, len(points) - 1}
    for number in range(bins):
        here = inner[number * len(inner) // bins : (number + 1) * len(inner) // bins]
        finite = [at for at in here if math.isfinite(points[at][1])]
        if finite:
            chosen.add(min(finite, key=lambda at: points[at][1]))
            chosen.add(max(finite, key=lambda at: points[at][1]))
        if len(finite) < len(here):
            chosen.add(next(at for at in here if not math.isfinite(points[at][1])))
    return [points[at] for at in sorted(chosen)]


def some(values: Sequence[float], most: int = MOST) -> list[int]:
    """The places of the values that :func:`thinned` keeps."""
    places = [(float(place), value) for place, value in enumerate(values)]
    return [int(place) for place, _ in thinned(places, most)]
