"""A point of a sweep, as it was judged and as ``sweep.json`` has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path, PurePath
from typing import Any, get_args

from launcher.base.errors import ConfigError
from launcher.preflight.verdict import VerdictName
from launcher.rundir import contents, state


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
        """A point of ``sweep.json``; :func:`of_record` reads it."""
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


def of_record(directory: Path, row: dict[str, Any]) -> Point:
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
        all(row.get(key) is None or contents.is_whole(row[key]) for key in ("predicted_bytes", "needed_bytes")),
        pile is None or (isinstance(pile, list) and len(pile) == 2 and contents.is_whole(pile[1])),
        speed is None or contents.is_number(speed),
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
