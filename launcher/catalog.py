"""The configuration folders: which groups there are, which options, and where each file lies.

A user's own ``conf/`` and ``recipes/`` in the working folder come before the shipped ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PRIMARY = "launch"
"""The name of the primary configuration file, without its suffix."""


def shipped(kind: str) -> Path:
    """The shipped ``conf`` or ``recipes`` folder: inside the installed package, or beside it in a checkout."""
    inside = Path(__file__).parent / "_shipped" / kind
    return inside if inside.is_dir() else Path(__file__).parent.parent / kind


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """What can be chosen from a working folder."""

    folder: Path

    @cached_property
    def conf(self) -> tuple[Path, ...]:
        """The configuration folders, the user's first."""
        return self._folders("conf")

    @cached_property
    def recipes(self) -> tuple[Path, ...]:
        """The recipe folders, the user's first."""
        return self._folders("recipes")

    def _folders(self, kind: str) -> tuple[Path, ...]:
        own, ours = (self.folder / kind).resolve(), shipped(kind).resolve()
        return (own, ours) if own.is_dir() and own != ours else (ours,)

    @cached_property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Options of each group by name; those that start with ``_`` are not for choosing."""
        ours = self.conf[-1]
        names = sorted(entry.name for entry in ours.iterdir() if (entry / "_base.yaml").is_file())
        return {name: self._options(name) for name in names} | {"recipe": self._recipe_names()}

    def _options(self, group: str) -> tuple[str, ...]:
        found = {path.stem for folder in self.conf for path in (folder / group).glob("*.yaml")}
        return tuple(sorted((name for name in found if not name.startswith("_")), key=_by_size))

    def _recipe_names(self) -> tuple[str, ...]:
        return tuple(sorted({path.stem for folder in self.recipes for path in folder.glob("*.yaml")}))

    def recipe(self, name: str) -> Path:
        """The file of a recipe that :attr:`groups` lists."""
        return next(path for folder in self.recipes if (path := folder / f"{name}.yaml").is_file())

    @cached_property
    def stamp(self) -> list[list[object]]:
        """Path, size and time of every configuration file as first seen: equal stamps compose equally."""
        files = sorted(path for folder in self.conf for path in folder.glob("**/*.yaml"))
        return [[str(path), (stat := path.stat()).st_size, stat.st_mtime_ns] for path in files]


def _by_size(name: str) -> tuple[float, str]:
    """Sort ``125m < 1b < 13b`` by what they say, and names without a size after them."""
    scale = {"m": 1e6, "b": 1e9}.get(name[-1:])
    number = name[:-1]
    return (float(number) * scale, name) if scale and number.isdigit() else (float("inf"), name)
