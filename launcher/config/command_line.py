"""The words of one command line, read once: overrides, their errors, and the recipe that they name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from launcher.base.errors import ConfigError
from launcher.config import recipes
from launcher.config.catalog import Catalog
from launcher.config.overrides import Override, read
from launcher.config.recipes import Recipe


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """Words that say one run, or the runs of a sweep.

    Attributes:
        words: Overrides as typed.
        script_args: The words after ``--``.
        catalog: The configuration folders that they choose from.
    """

    words: tuple[str, ...]
    script_args: tuple[str, ...] = ()
    catalog: Catalog

    @property
    def overrides(self) -> tuple[Override, ...]:
        """The words that are right, in order."""
        return self._read[0]

    @property
    def errors(self) -> tuple[ConfigError, ...]:
        """An error for each of the other words."""
        return self._read[1]

    @cached_property
    def _read(self) -> tuple[tuple[Override, ...], tuple[ConfigError, ...]]:
        overrides, errors = read(self.words, self.catalog)
        return tuple(overrides), tuple(errors)

    @cached_property
    def recipe(self) -> tuple[Path, Recipe] | None:
        """The file of the recipe that they name, and the recipe less what the other words take out of it.

        Raises:
            ConfigErrors: There is no such recipe, or it is broken.
        """
        return recipes.named(self.overrides, self.catalog)
