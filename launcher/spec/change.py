"""One change of a run: the overrides, the run that they make, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from launcher.spec import edit
from launcher.spec.run import RunSpec

type EngineChange = Literal["buffers", "sharding", "tensor", "sequence"]
"""The kinds of changes that an engine knows itself: smaller communication buffers, model states sharded further, layers
split over more ranks, sequences split over more ranks."""


@dataclass(frozen=True, slots=True)
class Change:
    """One variant: the overrides, the run that they make, and the cost in words."""

    overrides: tuple[str, ...]
    spec: RunSpec
    cost: str


type Neighbour = Callable[[RunSpec], Iterator[Change]]


def set_to(spec: RunSpec, cost: str, settings: dict[str, object], shown: tuple[str, ...] | None = None) -> Change:
    """Keys set to values; ``shown`` are other words for the same."""
    overrides = shown or tuple(edit.override(path, value) for path, value in settings.items())
    return Change(overrides, edit.changed_at(spec, settings), cost)


def same_batch(spec: RunSpec, change: Change, cost: str) -> Change:
    """A change of the data degree with the optimizer step that the run had."""
    total = spec.global_batch_size
    if change.spec.global_batch_size == total:
        return replace(change, cost=cost)
    batch = set_to(change.spec, cost, {"train.global_batch_size": total})
    return replace(batch, overrides=(*change.overrides, *batch.overrides))
