"""Cases in which a pipe, device, socket, link or folder replaces a file."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.fuzz.case import Case
from tests.support.odd_files import ODD

SHARE = 0.15
"""Of the cases that have files."""

MAKERS: Mapping[str, Callable[[Path], object]] = {
    **ODD,
    "a link to nothing": lambda path: path.symlink_to("no-such-file"),
    "a link to a folder": lambda path: path.symlink_to("/sys/class"),
    "a link to a file elsewhere": lambda path: path.symlink_to("/proc/version"),
    "a link into its own folder": lambda path: path.symlink_to("."),
}
"""By what they are, each made at a path where nothing is yet."""


def sometimes(chance: random.Random, case: Case) -> Case:
    """The case, sometimes with one or two of its files or folders replaced by something that is not a regular file."""
    if not case.files or chance.random() > SHARE:
        return case
    files, odd = dict(case.files), dict[str, str]()
    for _ in range(chance.choice((1, 1, 2))):
        if places := _places(files):
            path = chance.choice(places)
            files = {name: content for name, content in files.items() if not Path(name).is_relative_to(path)}
            odd = {name: what for name, what in odd.items() if not Path(name).is_relative_to(path)}
            odd[path] = chance.choice(list(MAKERS))
    return dataclasses.replace(case, files=files, odd=odd, answers=None)


def _places(files: Mapping[str, bytes]) -> list[str]:
    """Paths that may be replaced: the changed files, and their folders below the run."""
    changed = [name for name in files if "whole" not in name]
    folders = {str(Path(name).parent) for name in changed if "/" in name}
    return sorted({*changed, *folders})
