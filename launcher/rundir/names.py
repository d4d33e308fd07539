"""Names of runs: which folders are runs, sweeps and groups of them, and the words that each answers to.

A folder below ``runs/`` that is neither a run nor a sweep is a group (``run.name=group/a``), whose runs are found by
``group/a``, and by ``a`` alone where no other run has that name.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePath

from launcher.rundir import contents, state


def is_sweep(path: Path) -> bool:
    """True for the folder of a sweep."""
    return contents.exists(path, state.SWEEP)


def is_point(run: Path) -> bool:
    """True for the run of a sweep's point."""
    return is_sweep(run.parent)


def runs_of(path: Path) -> list[Path]:
    """The run of a run directory, or the runs of a sweep's; none where it is neither."""
    if is_sweep(path):
        return [each for each in _folders(path) if contents.exists(each, contents.SPEC)]
    return [path] if contents.exists(path, contents.SPEC) else []


def below(root: Path) -> Iterator[tuple[Path, list[Path]]]:
    """The runs and sweeps of a folder and its groups, each with its runs; links lead to runs, and to no group."""
    for path in _folders(root):
        runs = runs_of(path)
        if runs or is_sweep(path):
            yield path, runs
        elif not path.is_symlink():
            yield from below(path)


def answers(path: Path, word: str) -> bool:
    """True if a run, sweep or point is meant by a name: its own, with or without the groups and sweep above it."""
    parts = PurePath(word).parts
    return bool(parts) and path.parts[-len(parts) :] == parts


def id_of(run: Path) -> str:
    """The name that a run is shown by: of a point with its sweep's, else as ``run.name`` has it, groups included."""
    if is_point(run):
        return f"{run.parent.name}/{run.name}"
    names = contents.known(run, contents.SPEC).get("run", {})
    given = names.get("name")
    return given if isinstance(given, str) and answers(run, given) and "/" in given else run.name


def typed(run: Path) -> str:
    """The name that a run is shown by, as a shell takes it for one word: a folder may be called anything."""
    return shlex.quote(id_of(run))


def _folders(path: Path) -> list[Path]:
    """The folders in a folder by name, without those that are being written."""
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith(".") and _is_folder(entry))
    except OSError:
        return []
    return [path / name for name in names]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # A link that leads to itself.
        return False
