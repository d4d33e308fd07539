"""The points of a sweep with the numbers that a page has of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.base.units import GIB, MIB
from launcher.rundir import contents, state
from launcher.sweeping import outcomes, sweep
from launcher.sweeping.outcomes import Row
from launcher.views import comparison

type Numbers = tuple[float | None, ...]
"""One for each point; None where it has none, or not yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What came of a sweep so far.

    Attributes:
        directory: Of the sweep.
        words: Its command line, as typed; None in a record without it.
        measures: True where the points are layouts whose speed is the question.
        rows: The points.
        axes: Settings that differ between points, with the value of each point as typed.
        fixed: Settings that points name and that are the same in all.
        speeds: Tokens a second and GPU, measured.
        unit: Of memory: GiB, or MiB where all is small.
    """

    directory: Path
    words: tuple[str, ...] | None
    measures: bool
    rows: tuple[Row, ...]
    axes: Mapping[str, tuple[str | None, ...]]
    fixed: Mapping[str, str]
    speeds: Numbers
    unit: int

    @property
    def best(self) -> Row | None:
        """The point of the lowest loss, of a measurement the fastest one; None where none has a result."""
        if not self.measures:
            return outcomes.best(self.rows)
        known = [(speed, row) for speed, row in zip(self.speeds, self.rows, strict=True) if speed is not None]
        return max(known, key=lambda pair: pair[0])[1] if known else None

    @property
    def losses(self) -> Numbers:
        """As ``launch status`` has them."""
        return tuple(row.loss for row in self.rows)

    @property
    def predicted_speeds(self) -> Numbers:
        """Tokens a second and GPU, predicted."""
        return tuple(row.point.predicted_tokens_per_second_per_gpu for row in self.rows)

    @property
    def sizes(self) -> Numbers:
        """Allocated peak of the worst rank in ``unit``, measured."""
        return self._in_unit([row.measured_bytes for row in self.rows])

    @property
    def predicted_sizes(self) -> Numbers:
        """The same, predicted."""
        return self._in_unit([row.point.predicted_bytes for row in self.rows])

    def _in_unit(self, sizes: Sequence[int | None]) -> Numbers:
        return tuple(None if size is None else round(size / self.unit, 3) for size in sizes)


def read(directory: Path) -> Found:
    """Read a sweep.

    Raises:
        BadRecord: ``sweep.json`` does not hold what it should.
    """
    content: Mapping[str, Any] = contents.read(directory, state.SWEEP) or {}
    rows = tuple(outcomes.rows(directory))
    typed = [_typed(row.point.overrides) for row in rows]
    values = {
        key: tuple(words.get(key) for words in typed) for key in dict.fromkeys(key for each in typed for key in each)
    }
    sizes = [size for row in rows for size in (row.point.predicted_bytes, row.measured_bytes) if size is not None]
    words = content.get("overrides")
    return Found(
        directory=directory,
        words=None if words is None else tuple(words),
        measures=content.get(sweep.MEASUREMENT) is not None,
        rows=rows,
        axes={key: found for key, found in values.items() if len(set(found)) > 1},
        fixed={key: found[0] for key, found in values.items() if len(set(found)) == 1 and found[0] is not None},
        speeds=tuple(_speed(directory, row) for row in rows),
        unit=unit_of(sizes),
    )


def unit_of(sizes: Sequence[int]) -> int:
    """GiB, or MiB where all sizes are small: one unit for a column, so that its numbers are compared by the eye."""
    return MIB if max(sizes, default=0) < GIB // 2 else GIB


def _typed(overrides: Sequence[str]) -> dict[str, str]:
    """The settings of a point by their keys, as typed."""
    parted = (word.partition("=") for word in overrides)
    return {key.lstrip("+"): value for key, equals, value in parted if equals}


def _speed(directory: Path, row: Row) -> float | None:
    if row.tokens_per_second is None:
        return None
    return row.tokens_per_second / comparison.gpus(directory / row.point.id)
