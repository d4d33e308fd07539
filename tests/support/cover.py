"""Covering subsets of a matrix of cases: one with every choice, and one with every value and every pair of choices.

A choice is an engine, a precision, an adapter, a degree of parallelism; a size is a batch, a rate, a number of layers.
Continuous integration runs cases that have every choice. `make test-all` also runs those with the marker ``full``: then
every size occurs, and any two choices that occur together in some case do so in one that is run. The others have the
marker ``matrix``, and `make test-matrix` runs them. A fixture trains only the cases selected in this session
(:func:`asked`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import pytest

type Parts = Collection[str]
"""The values of a case, spelled with their dimension: ``precision=bf16``."""


def pairs(parts: Parts) -> frozenset[frozenset[str]]:
    """Each value of a case, and each pair of its choices."""
    choices = [part for part in parts if not _is_size(part)]
    return frozenset(frozenset(some) for some in (*((part,) for part in parts), *combinations(choices, 2)))


def _is_size(part: str) -> bool:
    dimension, _, value = part.partition("=")
    if dimension.startswith("parallel."):
        return False
    try:
        float(value)
    except ValueError:
        return False
    return True


def single(parts: Parts) -> frozenset[frozenset[str]]:
    """Each choice of a case."""
    return frozenset(frozenset((part,)) for part in parts if not _is_size(part))


@dataclass(frozen=True)
class Chosen:
    """The cases of a matrix that are run unless all are asked for."""

    first: Sequence[str]
    """Cases that together have every choice; continuous integration runs these."""

    pairs: Sequence[str]
    """Cases that together have every value and every pair of choices; `make test-all` runs these, too."""


def both(
    cases: Mapping[str, Parts], kept: Collection[str] = (), cost: Callable[[str], float] = lambda name: 1
) -> Chosen:
    """Choose for continuous integration and for `make test-all`; arguments as in :func:`chosen`."""
    paired = chosen(cases, kept, cost)
    return Chosen(chosen({name: cases[name] for name in paired}, kept, cost, single), paired)


def chosen(
    cases: Mapping[str, Parts],
    kept: Collection[str] = (),
    cost: Callable[[str], float] = lambda name: 1,
    of: Callable[[Parts], frozenset[frozenset[str]]] = pairs,
) -> list[str]:
    """Choose few cases that have every pair of values of all cases, in their order.

    Greedy: the case with the most missing pairs for its cost comes next, the first on a tie; a case that later ones
    make redundant is removed again.

    Args:
        cases: The values of each by name.
        kept: Cases that are always chosen because other tests need them.
        cost: Cost of a case, in any unit.
        of: What of a case has to occur, in place of pairs.
    """
    having = {name: of(parts) for name, parts in cases.items()}
    found = dict.fromkeys(kept)
    missing = set().union(*having.values()).difference(*(having[name] for name in found))
    while missing:
        found[max(having, key=lambda name: len(having[name] & missing) / cost(name))] = None
        missing.difference_update(*(having[name] for name in found))
    for name in [name for name in found if name not in kept]:
        if having[name] <= set().union(*(having[other] for other in found if other != name)):
            del found[name]
    return [name for name in cases if name in found]


def marked(names: Iterable[Any], chosen: Chosen) -> list[Any]:
    """The parameters of a test: those that continuous integration leaves out have a marker, ``full`` or ``matrix``."""
    marks = dict.fromkeys(chosen.pairs, pytest.mark.full) | dict.fromkeys(chosen.first)
    found = ((name, marks.get(name, pytest.mark.matrix)) for name in names)
    return [pytest.param(name, marks=mark) if mark else name for name, mark in found]


def asked(request: pytest.FixtureRequest) -> set[Any]:
    """Every value of a parameter for which this session runs a test of the module."""
    items = [item for item in request.session.items if item.path == request.node.path]
    return {value for item in items if hasattr(item, "callspec") for value in item.callspec.params.values()}


@dataclass(frozen=True)
class Runs:
    """Runs of a module, in parts; the runs of a part are trained one after the other in the same ranks."""

    parts: Mapping[str, Mapping[str, Sequence[str]]]
    """The words of each run, by the names of its part and of the run."""

    ranks: Mapping[str, int]
    """Number of ranks of a part, if it is not two."""

    needed: Collection[str]
    """``PART/RUN`` of runs that others start from, or that are checked for more than their losses."""

    @cached_property
    def chosen(self) -> Chosen:
        """``PART/RUN`` of few runs that have all choices or pairs; the number of ranks is a size."""
        runs = {
            f"{part}/{name}": (*words, f"ranks={self.ranks.get(part, 2)}")
            for part, of_part in self.parts.items()
            for name, words in of_part.items()
        }
        return both(runs, self.needed, cost=lambda run: self.ranks.get(run.partition("/")[0], 2))

    def marked(self, *parts: str) -> list[Any]:
        """Parameters of a test over every ``PART/RUN`` of these parts."""
        return marked([f"{part}/{name}" for part in parts for name in self.parts[part]], self.chosen)

    def of(self, part: str, request: pytest.FixtureRequest) -> dict[str, Sequence[str]]:
        """Runs of a part that this session trains."""
        wanted = asked(request) | {*self.needed}
        return {name: words for name, words in self.parts[part].items() if f"{part}/{name}" in wanted}
