"""Shared by the tests of single overheads: a counted rank of Llama-3 8B on 8 GPUs, and the bytes of some terms."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.estimate.memory.moments import Moment
from launcher.estimate.memory.terms import MemoryTerm
from launcher.estimate.rank.model import RankModel
from tests.support.estimates import ranks_of
from tests.support.helpers import make_spec

EIGHT_B = (
    "model=llama3_8b",
    "precision=bf16",
    "hardware=h100_80g",
    "cluster.gpus_per_node=8",
    "train.sequence_length=2048",
)


def rank(*overrides: str, stage: int = 0) -> RankModel:
    """One rank of a stage."""
    return ranks_of(make_spec(*EIGHT_B, *overrides))[stage].model


def at(terms: Iterable[MemoryTerm], moment: Moment, instant: str | None = None) -> int:
    """Bytes of the terms alive at a moment, or at one instant of it if named."""
    found = [term for term in terms if moment in term.moments and instant in (None, term.instant)]
    assert found, (moment, instant)
    return sum(term.bytes for term in found)
