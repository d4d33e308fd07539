"""Files and folders that appear complete or not at all, even if the process or the machine dies meanwhile."""

import json
import math
import mmap
import os
import shutil
from pathlib import Path

from launcher.base.files import descriptor


def finish_directory(partial: Path, final: Path) -> None:
    """Flush every file to disk, then rename: a crash leaves the old state or the new one."""
    for path in [*partial.rglob("*"), partial]:
        flush(path)
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    flush(final.parent)


def flush(path: Path) -> None:
    """Wait until the content of a file or folder is on disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cut(path: Path, step: int) -> None:
    """Remove lines of later steps and a partial last line from a JSON Lines file, reading backwards from its end."""
    if not path.exists() or not path.stat().st_size:  # An empty file cannot be mapped.
        return
    with os.fdopen(descriptor(path, os.O_RDWR), "r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            end = content.rfind(b"\n") + 1
            while end and _step_of(content[(start := content.rfind(b"\n", 0, end - 1) + 1) : end]) > step:
                end = start
        file.truncate(end)


def _step_of(line: bytes) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf
