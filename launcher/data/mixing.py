"""How many samples of each data set one epoch of a mix has."""

from __future__ import annotations

from collections.abc import Sequence


def drawn(sizes: Sequence[int], weights: Sequence[float]) -> list[int]:
    """The samples of each data set in one epoch.

    Without weights each has its own. With weights their numbers are as the weights, and as small as they can be with
    every sample in the epoch once at least: sets that are small for their weight are repeated.
    """
    if not weights:
        return list(sizes)
    most = max(size / weight for size, weight in zip(sizes, weights, strict=True))
    return [max(size, round(weight * most)) for size, weight in zip(sizes, weights, strict=True)]
