"""The axes of a sweep: the overrides of a command line with several values, and the points that they span.

Each point is later composed separately, so that a plain override applies to the swept option. Hydra's own multirun
would compose the default option first (``-m parallel=fsdp,ddp parallel.tensor=2`` is checked against neither).
"""

import itertools
import math
from collections.abc import Iterator, Sequence

from launcher.base.errors import ConfigError, raise_any
from launcher.base.frozen import dataclass
from launcher.config import recipes
from launcher.config.catalog import Catalog
from launcher.config.compose import Interval, swept
from launcher.config.overrides import Override, read

MAXIMUM_POINTS = 100_000
_OF_THE_SWEEP = ("recipe", "run.name", "run.directory", "sweep", "sweep.sampler", "sweep.budget", "sweep.parallelism")
"""Keys that apply to the whole sweep and therefore have one value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One swept key: its values as typed, or an interval."""

    key: str
    values: tuple[str, ...] | Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """A command line split into the overrides of every point and the axes."""

    fixed: tuple[str, ...]  # Overrides of every point, as typed.
    swept: tuple[Axis, ...]  # The axes, the slowest first.

    @property
    def size(self) -> int:
        """Number of points of the grid; 1 without an axis. An interval counts as one."""
        return math.prod(len(axis.values) for axis in self.swept if isinstance(axis.values, tuple))

    def first(self) -> tuple[str, ...]:
        """Return the overrides of one point: the first value of every axis, or an interval's lower end."""
        ends = [axis.values.low if isinstance(axis.values, Interval) else axis.values[0] for axis in self.swept]
        return tuple(f"{axis.key}={end}" for axis, end in zip(self.swept, ends, strict=True))

    def grid(self) -> Iterator[tuple[str, ...]]:
        """Yield the overrides of each point besides the fixed ones, the last axis varying fastest.

        Raises ConfigErrors: An axis is an interval, or there are more than MAXIMUM_POINTS.
        """
        ways = ["sweep.sampler=tpe sweep.budget=20", "sweep.sampler=random sweep.budget=20"]
        errors = [
            ConfigError(axis.key, "interval", "a grid cannot enumerate an interval: use a sampler", ways)
            for axis in self.swept
            if isinstance(axis.values, Interval)
        ]
        if self.size > MAXIMUM_POINTS:
            rule = f"a sweep has at most {MAXIMUM_POINTS} points; a sampler tries only some of them"
            errors.append(ConfigError("sweep", self.size, rule, ["sweep.sampler=random"]))
        raise_any(errors)
        typed = [[f"{axis.key}={value}" for value in axis.values] for axis in self.swept]  # type: ignore[union-attr]
        return itertools.product(*typed)


def read_axes(texts: Sequence[str], catalog: Catalog) -> Axes:
    """Return the axes, a recipe's first unless the words set the same key; raises ConfigErrors if a word is wrong."""
    overrides, errors = read(texts, catalog)
    raise_any(errors)
    fixed: list[str] = []
    axes: dict[str, Axis] = {}
    for override in (*_of_the_recipe(overrides, catalog), *overrides):
        values = None if override.plain()[0] else swept(override, catalog.groups.get(override.key, ()))
        axes.pop(override.key, None)
        if values is None:
            fixed.append(override.text)
            continue
        if override.key in _OF_THE_SWEEP:
            errors.append(ConfigError(override.key, override.value, "it applies to the whole sweep: set one value"))
        axes[override.key] = Axis(key=override.key, values=values)
    raise_any(errors)
    return Axes(fixed=tuple(fixed), swept=tuple(axes.values()))


def _of_the_recipe(overrides: Sequence[Override], catalog: Catalog) -> list[Override]:
    """The axes of the named recipe, without those that the user sets or whose group the user chooses."""
    if (named := recipes.named(overrides, catalog)) is None:
        return []
    _, recipe = named
    again = [word for word in recipe.settings() if word.partition(".")[0] in recipe.sweep]
    return recipes.words_of(recipe, [*again, *recipe.sweeps()], catalog)
