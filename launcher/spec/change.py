"""Changes of a run: the overrides, the resulting run, and the cost."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

from launcher.base.frozen import dataclass
from launcher.spec import edit
from launcher.spec.run import RunSpec

type EngineChange = Literal["buffers", "sharding", "tensor", "sequence", "recomputation"]
"""Kinds of changes that an engine offers itself: smaller communication buffers, model states sharded further, layers
split over more ranks, sequences split over more ranks, modules of a block recomputed."""


@dataclass(frozen=True, slots=True)
class Change:
    """One variant of a run."""

    overrides: tuple[str, ...]  # As the user types them.
    spec: RunSpec  # The resulting run.
    cost: str  # Its cost, in words.
    # True if the cost is more than time, or time that the speed model does not count: it is then shown beside a
    # predicted speed, not replaced by it.
    stays: bool = False


type Neighbour = Callable[[RunSpec], Iterator[Change]]


def set_to(
    spec: RunSpec, cost: str, settings: dict[str, object], shown: tuple[str, ...] | None = None, *, stays: bool = False
) -> Change:
    """Return the change that sets keys. ``cost`` is in words; ``shown`` are equivalent overrides to show instead."""
    overrides = shown or tuple(edit.override(path, value) for path, value in settings.items())
    return Change(overrides, edit.changed_at(spec, settings), cost, stays)


def same_batch(spec: RunSpec, change: Change, cost: str) -> Change:
    """Return a change of the data degree that keeps the global batch; accumulation is then derived from it."""
    total = spec.global_batch_size
    if change.spec.global_batch_size == total:
        return replace(change, cost=cost)
    settings: dict[str, object] = {"train.global_batch_size": total}
    if change.spec.train.gradient_accumulation is not None:
        settings["train.gradient_accumulation"] = None
    batch = set_to(change.spec, cost, settings)
    return replace(batch, overrides=(*change.overrides, *batch.overrides))


def batches(spec: RunSpec, count: int, size: int) -> dict[str, object]:
    """Return the fewest settings with which a rank takes ``count`` micro-batches of ``size`` sequences per step."""
    train, total = spec.train, count * size * spec.data_degree
    settings: dict[str, object] = {}
    if train.micro_batch_size not in (None, size):  # Unset, it is derived from the other two.
        settings["train.micro_batch_size"] = size
    if train.gradient_accumulation not in (None, count):
        settings["train.gradient_accumulation"] = count
    follows = train.global_batch_size is None and (train.gradient_accumulation is not None or count == 1)
    if not follows and train.global_batch_size != total:
        settings["train.global_batch_size"] = total
    return settings


def batches_typed(spec: RunSpec, count: int, size: int) -> str:
    """Return the settings of :func:`batches` as the user types them."""
    return " ".join(edit.override(path, value) for path, value in batches(spec, count, size).items())
