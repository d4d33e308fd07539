"""The configuration folders: their groups, options and files.

A user's own ``conf/`` and ``recipes/`` in the working folder take precedence over the shipped ones.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

from launcher.base import cache, files
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.frozen import dataclass
from launcher.base.package import __version__, shipped
from launcher.config import safe_yaml
from launcher.spec.parse import closest

PRIMARY = "launch"  # The name of the primary configuration file, without its suffix.
PRESETS = "parallel"  # The group whose options choose other groups' options.
_BASE = "_base.yaml"
_DEEPEST = 3  # Levels of folders searched below a configuration folder; options are one level down.
_TOP_LEVEL = re.compile(r"^([^\s#].*)$", re.MULTILINE)
_KEY = re.compile(r"([\w-]+):")
_DEFAULTS = re.compile(r"^defaults:( \[[\w, -]+\]|(\n *- \w+)+) *$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """The groups and options that can be chosen from a working folder."""

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
        own, ours = files.real(self.folder / kind), files.real(shipped(kind))
        return (own, ours) if own.is_dir() and own != ours else (ours,)

    @cached_property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Options of each group by name, without those that start with ``_``, which users cannot choose."""
        options: dict[str, set[str]] = {}
        for folder in self.conf:
            for name in self._names[folder]:
                group, slash, option = name.partition("/")
                if slash and "/" not in option:
                    options.setdefault(group, set()).add(option.removesuffix(".yaml"))
        bases = (name.partition("/") for name in self._names[self.conf[-1]])
        groups = sorted(group for group, _, option in bases if option == _BASE)
        recipes = tuple(sorted({path.stem for folder in self.recipes for path in folder.glob("*.yaml")}))
        return {group: _in_order(options[group]) for group in groups} | {"recipe": recipes}

    def recipe(self, name: str) -> Path:
        """Return the file of a recipe; raises ConfigErrors if there is none."""
        found = self.find_recipe(name)
        if found is None:
            near = [f"recipe={other}" for other in closest(name, self.groups["recipe"])]
            raise ConfigErrors([ConfigError("recipe", name, "no such recipe", near or ["launch recipe list"])])
        return found

    def find_recipe(self, name: str) -> Path | None:
        """Return a recipe's file, by its name in :attr:`groups`, a path or ``package/name``; None if there is none."""
        if name.endswith((".yaml", ".yml")):
            path = self.folder / name
            return path if path.is_file() else None
        if "/" in name:
            return _installed_recipe(*name.split("/", 1))
        return next((path for folder in self.recipes if (path := folder / f"{name}.yaml").is_file()), None)

    @cached_property
    def _names(self) -> dict[Path, list[str]]:
        return {folder: sorted(_yaml_names(str(folder))) for folder in self.conf}

    @property
    def _files(self) -> Iterator[tuple[Path, Path]]:
        return ((folder / name, folder) for folder, names in self._names.items() for name in names)

    @cached_property
    def digest(self) -> str:
        """Digest of path, size and time of every configuration file as first seen: equal digests compose equally."""
        places = (f"{folder}/{name}" for folder, names in self._names.items() for name in names)
        return hashlib.sha256(json.dumps([[place, *_stamp(place)] for place in places]).encode()).hexdigest()

    def require_bounded(self) -> None:
        """Check the size of a user's own files, which may be untrusted, before Hydra reads them.

        Raises ConfigErrors: A file exceeds the limits of ``safe_yaml``.
        """

        def check() -> bool:
            for path in self._own_files:
                safe_yaml.require_bounded(path)
            return True

        if self._own_files:
            cache.answer("bounded", [__version__, self.digest], check)

    @cached_property
    def _own_files(self) -> tuple[Path, ...]:
        """The files of a user's own options; other files in a folder of this name are ignored."""
        groups = {folder / group for folder in self.conf[:-1] for group in self.groups}
        ours = self.conf[-1]
        return tuple(path for path, folder in self._files if folder != ours and path.parent in {folder, *groups})

    @property
    def interpolates(self) -> bool:
        """True if a value may interpolate others."""
        return self._properties["interpolates"]

    @property
    def options_stand_alone(self) -> bool:
        """True if each option writes only into its own group and, except for presets, chooses no other option."""
        return self._properties["options_stand_alone"]

    @cached_property
    def _properties(self) -> dict[str, bool]:
        """Properties of the text of all files, cached between commands: reading them is the slowest step here."""
        found: dict[str, bool] = cache.answer("catalog", [__version__, self.digest], self._read)
        return found

    def _read(self) -> dict[str, bool]:
        texts = [(_beginning(path), path.relative_to(folder)) for path, folder in self._files]
        return {
            "interpolates": any("${" in text for text, _ in texts),
            "options_stand_alone": all(self._stands_alone(text, path) for text, path in texts),
        }

    def _stands_alone(self, text: str, path: Path) -> bool:
        keys = [match[1] if (match := _KEY.match(line)) else "" for line in _TOP_LEVEL.findall(text)]
        if len(path.parts) == 1:
            return path.stem != PRIMARY or not any(key in self.groups for key in keys)
        if path.parts[0] == PRESETS:
            return "@package _global_" not in text or {*keys} <= {"defaults", PRESETS}
        return "@package" not in text and ("defaults:" not in text or bool(_DEFAULTS.search(text)))


def _installed_recipe(package: str, name: str) -> Path | None:
    """A recipe that an installed package offers through the entry point ``launch.recipes``, without importing it.

    ``mine = "my_package.recipes"`` offers the YAML files of that folder as ``recipe=mine/NAME``.
    """
    from importlib.metadata import entry_points  # Imported late: it scans every installed package.

    for entry in entry_points(group="launch.recipes", name=package):
        if entry.dist is not None:
            path = Path(str(entry.dist.locate_file(entry.value.replace(".", "/")))) / f"{name}.yaml"
            if path.is_file():
                return path
    return None


def _stamp(path: str) -> tuple[int, int]:
    try:
        stat = os.stat(path)  # noqa: PTH116
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns


def _beginning(path: Path) -> str:
    if not path.is_file():
        return ""
    with files.opened(path) as file:
        return file.read(files.MOST_BYTES).decode(errors="replace")


def yaml_files(folder: Path) -> Iterator[Path]:
    """Yield the YAML files below a folder; symbolic links may form cycles in it."""
    return (folder / name for name in _yaml_names(str(folder)))


def _yaml_names(folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder, followlinks=True):
        below = place[len(folder) + 1 :]
        if below.count("/") == _DEEPEST - 1:
            folders.clear()
        yield from (f"{below}/{name}" if below else name for name in names if name.endswith(".yaml"))


def _in_order(options: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted((name for name in options if not name.startswith("_")), key=_by_size))


def _by_size(name: str) -> tuple[float, str]:
    scale = {"m": 1e6, "b": 1e9}.get(name[-1:])
    number = name[:-1]
    return (float(number) * scale, name) if scale and number.isdecimal() else (float("inf"), name)
