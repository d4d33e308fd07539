"""Nelder and Mead's downhill simplex: the least value of a function of a few numbers, without derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

type Vector = npt.NDArray[np.float64]


def least(cost: Callable[[Vector], float], starts: Sequence[Sequence[float]], restarts: int = 3) -> Vector:
    """The best end of a few searches, each begun anew from its own end, by which a collapsed simplex goes on."""
    ends = []
    for start in starts:
        place = np.array(start, dtype=np.float64)
        for step in (0.15, 0.1, 0.1)[:restarts]:
            place = _search(cost, place, step)
        ends.append(place)
    return min(ends, key=cost)


def _search(cost: Callable[[Vector], float], start: Vector, step: float, rounds: int = 600) -> Vector:
    points = [start, *(start * (1 + step * row) for row in np.eye(len(start)))]
    costs = [cost(point) for point in points]
    for _ in range(rounds):
        order = np.argsort(costs, kind="stable")
        points, costs = [points[i] for i in order], [costs[i] for i in order]
        if costs[-1] - costs[0] < 1e-6:
            break
        centre: Vector = np.mean(points[:-1], axis=0)
        moved, price = _move(cost, centre, points[-1], costs)
        if moved is not None:
            points[-1], costs[-1] = moved, price
        else:
            points = [points[0], *((points[0] + point) / 2 for point in points[1:])]
            costs = [costs[0], *(cost(point) for point in points[1:])]
    return points[int(np.argmin(costs))]


def _move(
    cost: Callable[[Vector], float], centre: Vector, worst: Vector, costs: list[float]
) -> tuple[Vector | None, float]:
    """The worst point reflected, stretched or drawn in; None where the whole simplex has to shrink."""
    reflected = 2 * centre - worst
    price = cost(reflected)
    if price < costs[0]:
        stretched = 3 * centre - 2 * worst
        further = cost(stretched)
        return (stretched, further) if further < price else (reflected, price)
    if price < costs[-2]:
        return reflected, price
    drawn = (centre + worst) / 2
    price = cost(drawn)
    return (drawn, price) if price < costs[-1] else (None, price)
