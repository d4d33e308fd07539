"""One change of a run: the overrides, the run that they make, and its cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from launcher.spec import RunSpec, edit


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
