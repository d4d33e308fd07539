"""A point of a sweep, as it was judged and as ``sweep.json`` has it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path, PurePath
from typing import Any, get_args

from launcher import backends
from launcher.base import typed
from launcher.base.errors import ConfigError
from launcher.preflight.verdict import VerdictName
from launcher.rundir import contents, state
from launcher.spec import RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a sweep.

    Attributes:
        id: Its number in the sweep, and the name of its run's folder.
        overrides: Its own settings, beside the words that all points share.
        verdict: The pre-flight's answer.
        reason: Why it is left out; None where it is run.
        predicted_bytes: The allocated peak of the worst rank; None for an invalid point.
        needed_bytes: Bytes that its device must have, the figure of the verdict; None for an invalid point.
        largest_pile: The pile with most of that rank's memory, with its bytes; None for an invalid point.
        predicted_tokens_per_second_per_gpu: None where it is unknown, and of a point that does not fit.
        layout: The last of its overrides, where these are the planner's choices for ``plan=best``.
    """

    id: str
    overrides: tuple[str, ...]
    verdict: VerdictName
    reason: str | None
    predicted_bytes: int | None
    needed_bytes: int | None = None  # Sweeps that were recorded without it are read, too.
    largest_pile: tuple[str, int] | None
    predicted_tokens_per_second_per_gpu: float | None = None
    layout: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        """True if it is run."""
        return self.reason is None

    @property
    def proposed(self) -> tuple[str, ...]:
        """Its overrides as the axes gave them, without the layout."""
        return self.overrides[: len(self.overrides) - len(self.layout)]

    def as_dict(self) -> dict[str, Any]:
        """A point of ``sweep.json``; :func:`read_point` reads it."""
        names = [each.name for each in fields(self) if each.name not in ("overrides", "layout")]
        words = {"overrides": list(self.overrides), "layout": list(self.layout)}
        return {**{name: getattr(self, name) for name in names}, **words}


def invalid(name: str, overrides: Sequence[str], errors: Iterable[ConfigError]) -> Point:
    """A point that is no run, with the reasons."""
    reason = "; ".join(f"{error.where}: {error.rule}" for error in errors)
    return Point(
        id=name,
        overrides=tuple(overrides),
        verdict="invalid",
        reason=reason,
        predicted_bytes=None,
        largest_pile=None,
    )


def read_point(directory: Path, row: dict[str, Any]) -> Point:
    """A point of a sweep's folder.

    Raises:
        BadRecord: ``sweep.json`` does not hold what it should.
    """
    name, pile = row.get("id"), row.get("largest_pile")
    words, layout = row.get("overrides"), row.get("layout", [])  # Sweeps from before there was a plan=best have none.
    speed = row.get("predicted_tokens_per_second_per_gpu")
    fits = (
        isinstance(name, str) and PurePath(name).name == name,
        isinstance(words, list) and all(isinstance(word, str) for word in words) and _ends_in(words, layout),
        isinstance(row.get("reason"), str | None),
        row.get("verdict") in get_args(VerdictName.__value__),
        all(row.get(key) is None or typed.is_whole(row[key]) for key in ("predicted_bytes", "needed_bytes")),
        pile is None or (isinstance(pile, list) and len(pile) == 2 and typed.is_whole(pile[1])),
        speed is None or typed.is_number(speed),
    )
    if not all(fits):
        raise contents.BadRecord(directory / state.SWEEP, f"point {name!r} is not as a sweep writes it")
    known = {each.name for each in fields(Point)}
    return Point(**{
        "reason": None,
        "predicted_bytes": None,
        "largest_pile": None,
        **{key: value for key, value in row.items() if key in known},
        "overrides": tuple(row["overrides"]),
        "layout": tuple(layout),
    })


def _ends_in(words: list[str], layout: object) -> bool:
    return isinstance(layout, list) and len(layout) <= len(words) and words[len(words) - len(layout) :] == layout


_SHOWN = 4
_FORMATS = ("parameters", "gradients", "reduce", "master")


def differences(points: Sequence[tuple[str, RunSpec]], swept: Collection[str]) -> list[str]:
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
    parts = (f"{one} in {name_points(found)}" for one, found in list(by_value.items())[:_SHOWN])
    more = f"; {len(by_value) - _SHOWN} more" if len(by_value) > _SHOWN else ""
    return [f"not alike: {what}: {', '.join(parts)}{more}"]


def name_points(points: Sequence[str]) -> str:
    """The first of some points by name, and how many more there are."""
    more = f" and {len(points) - _SHOWN} more" if len(points) > _SHOWN else ""
    return f"{' '.join(points[:_SHOWN])}{more}"
