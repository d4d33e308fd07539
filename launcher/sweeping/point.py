"""A point of a sweep as judged and as stored in ``sweep.json``, and unintended differences between points."""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields
from pathlib import Path, PurePath

from launcher import backends
from launcher.base import typed
from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.preflight.verdict import VerdictName
from launcher.rundir import contents, state
from launcher.spec import RunSpec

_NAMED = 4  # Points or values that a sentence names before it counts the rest, so that it fits on one line.
_FORMATS = ("parameters", "gradients", "reduce", "master")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a sweep."""

    id: str  # Its number in the sweep, and the name of its run's folder.
    overrides: tuple[str, ...]  # Its own settings, in addition to the words that all points share.
    verdict: VerdictName  # The pre-flight's verdict.
    reason: str | None  # Why it is skipped; None if it runs.
    predicted_bytes: int | None  # Allocated peak of the worst rank; None for an invalid point.
    needed_bytes: int | None  # Bytes that its device must have, as in the verdict; None for an invalid point.
    largest_pile: tuple[str, int] | None  # That rank's largest pile, with its bytes; None for an invalid point.
    predicted_tokens_per_second_per_gpu: float | None  # None if unknown, or if the point does not fit.
    layout: tuple[str, ...] = ()  # The last of its overrides, if the planner chose them for ``plan=best``.

    @property
    def kept(self) -> bool:
        """True if the point runs."""
        return self.reason is None

    @property
    def proposed(self) -> tuple[str, ...]:
        """Its overrides from the axes, without the planner's layout."""
        return self.overrides[: len(self.overrides) - len(self.layout)]

    def as_dict(self) -> JsonObject:
        """The point as stored in ``sweep.json``; :func:`read_point` reads it."""
        names = [each.name for each in fields(self) if each.name not in ("overrides", "layout")]
        words = {"overrides": list(self.overrides), "layout": list(self.layout)}
        return {**{name: getattr(self, name) for name in names}, **words}


def invalid(name: str, overrides: Sequence[str], errors: Iterable[ConfigError]) -> Point:
    """A point that is not a valid run, with the reasons."""
    reason = "; ".join(f"{error.where}: {error.rule}" for error in errors)
    return Point(
        id=name,
        overrides=tuple(overrides),
        verdict="invalid",
        reason=reason,
        predicted_bytes=None,
        needed_bytes=None,
        largest_pile=None,
        predicted_tokens_per_second_per_gpu=None,
    )


def read_point(directory: Path, row: JsonObject) -> Point:
    """Read a point of a sweep's folder. Raises BadRecord if it is not as :meth:`Point.as_dict` writes it."""
    try:
        point = typed.read(Point, row)
    except typed.Unfit:
        point = None
    if point is None or PurePath(point.id).name != point.id or point.proposed + point.layout != point.overrides:
        rule = f"point {row.get('id')!r} is not in the form that a sweep writes"
        raise contents.BadRecord(directory / state.SWEEP, rule)
    return point


def differences(points: Sequence[tuple[str, RunSpec]], swept: Collection[str]) -> list[str]:
    """A sentence for each difference between valid points that is not ``swept``: batch, sequence length, formats."""
    sentences = []
    if not {"train", "train.global_batch_size", "train.micro_batch_size"} & {*swept}:
        sentences += _batch(points)
    if not {"train", "train.sequence_length", "model"} & {*swept}:
        sentences += _differing("tokens per sequence", points, lambda spec: str(spec.sequence_length))
    if not any(key.partition(".")[0] == "precision" for key in swept):
        sentences += _differing("number formats", points, _formats)
    return sentences


def _batch(points: Sequence[tuple[str, RunSpec]]) -> list[str]:
    found = _differing("sequences per step", points, lambda spec: str(spec.global_batch_size))
    batch = math.lcm(*(spec.micro_batch_size * spec.data_degree for _, spec in points))
    return [f"{sentence}; train.global_batch_size={batch} works for all" for sentence in found]


def _formats(spec: RunSpec) -> str:
    formats = backends.of(spec).dtypes(spec)
    return " ".join(f"{name} {getattr(formats, name) or 'none'}" for name in _FORMATS)


def _differing(what: str, points: Sequence[tuple[str, RunSpec]], value: Callable[[RunSpec], str]) -> list[str]:
    by_value: dict[str, list[str]] = {}
    for name, spec in points:
        by_value.setdefault(value(spec), []).append(name)
    if len(by_value) < 2:
        return []
    parts = (f"{one} in {name_points(found)}" for one, found in list(by_value.items())[:_NAMED])
    more = f"; {len(by_value) - _NAMED} more" if len(by_value) > _NAMED else ""
    return [f"points differ in {what}: {', '.join(parts)}{more}"]


def name_points(points: Sequence[str]) -> str:
    """The names of the first points, and how many more there are."""
    more = f" and {len(points) - _NAMED} more" if len(points) > _NAMED else ""
    return f"{' '.join(points[:_NAMED])}{more}"
