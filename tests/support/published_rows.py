"""A published run as its adapter reads it, and the prediction for its first rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.memory.row import Row
from launcher.base import registry
from launcher.estimate.memory.estimate import RankTerms, rank_terms
from launcher.estimate.memory.moments import Moment


def the_row(read: Callable[[Path], Iterator[Row]], path: Path, line: Mapping[str, str]) -> Row:
    """The row that an adapter makes of a one-line file."""
    path.write_text("\n".join((",".join(line), ",".join(f'"{value}"' for value in line.values()))))
    (found,) = read(path)
    return found


def rank(found: Row) -> RankTerms:
    """The first rank of a row."""
    assert found.spec is not None, found.left_out
    assert found.backend is not None
    strategies = [registry.load("strategies", name) for name in registry.names("strategies")]
    family = registry.load("families", found.spec.model.family)
    return rank_terms(found.spec, family=family, strategies=strategies, backend=found.backend)[0]


def at(found: RankTerms, moment: Moment, *piles: str) -> int:
    """Bytes of piles at a moment."""
    return sum(term.bytes for term in found.at(moment) if term.pile in piles)
