"""The files that `data.path` names, found without opening any."""

from __future__ import annotations

import glob
import sysconfig
from pathlib import Path

STDLIB = "{stdlib}"
"""Stands in ``data.path`` for the folder of Python's own sources."""


def data_files(pattern: str) -> list[Path]:
    """The files of ``data.path``: a file, a folder's files, or a glob, in alphabetical order."""
    pattern = pattern.replace(STDLIB, sysconfig.get_path("stdlib"))
    path = Path(pattern)
    found = path.rglob("*") if path.is_dir() else map(Path, glob.glob(pattern, recursive=True))
    return sorted(entry for entry in found if entry.is_file())
