"""Differences between the points of a sweep that nobody swept: another batch, other number formats.

Presets leave different numbers of data ranks, and with them another default batch; engines mean different formats by
one ``precision``. A table of such points compares trainings, not engines, which is said beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from launcher import backends
from launcher.spec import RunSpec

_SHOWN = 4
_FORMATS = ("parameters", "gradients", "reduce", "master")


def unequal(points: Sequence[tuple[str, RunSpec]], swept: Collection[str]) -> list[str]:
    """A sentence for each thing that differs between points.

    Args:
        points: The valid points: id and specification.
        swept: The keys that are swept; what is a key of these is meant to differ.
    """
    said = []
    if not {"train", "train.global_batch_size", "train.micro_batch_size"} & {*swept}:
        said += _batch(points)
    if not {"train", "train.sequence_length", "model"} & {*swept}:
        said += _differing("tokens of a sequence", points, lambda spec: str(spec.sequence_length))
    if not any(key.partition(".")[0] == "precision" for key in swept):
        said += _differing("number formats", points, _formats)
    return said


def _batch(points: Sequence[tuple[str, RunSpec]]) -> list[str]:
    """Other batches of a step, with the smallest that all points can have."""
    found = _differing("sequences of a step", points, lambda spec: str(spec.global_batch_size))
    batch = math.lcm(*(spec.micro_batch_size * spec.data_degree for _, spec in points))
    return [f"{sentence}; train.global_batch_size={batch} is one for all" for sentence in found]


def _formats(spec: RunSpec) -> str:
    formats = backends.of(spec).dtypes(spec)
    return " ".join(f"{name} {getattr(formats, name) or 'none'}" for name in _FORMATS)


def _differing(what: str, points: Sequence[tuple[str, RunSpec]], value: Callable[[RunSpec], str]) -> list[str]:
    """One sentence that names the points of each value; none where all have the same."""
    by_value: dict[str, list[str]] = {}
    for name, spec in points:
        by_value.setdefault(value(spec), []).append(name)
    if len(by_value) < 2:
        return []
    parts = (f"{one} in {names(found)}" for one, found in list(by_value.items())[:_SHOWN])
    more = f"; {len(by_value) - _SHOWN} more" if len(by_value) > _SHOWN else ""
    return [f"not alike: {what}: {', '.join(parts)}{more}"]


def names(points: Sequence[str]) -> str:
    """The first of some points by name, and how many more there are."""
    more = f" and {len(points) - _SHOWN} more" if len(points) > _SHOWN else ""
    return f"{' '.join(points[:_SHOWN])}{more}"
