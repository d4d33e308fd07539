"""Files and folders that appear whole or not at all, also when the process or the machine ends meanwhile."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path


def write_json(path: Path, content: object) -> None:
    """Write JSON such that a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content) + "\n")
    temporary.replace(path)


def finish_directory(partial: Path, final: Path) -> None:
    """Push every file to the disk, then rename: a crash leaves the old state or the new one."""
    for path in [*partial.rglob("*"), partial]:
        flush(path)
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    flush(final.parent)


def flush(path: Path) -> None:
    """Wait until a file's or folder's content is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cut(path: Path, step: int) -> None:
    """Leave the whole lines up to a step in a file of JSON lines; those after it will be written again."""
    if not path.exists():
        return
    kept = [line for line in path.read_text().splitlines() if _step_of(line) <= step]
    temporary = path.with_name(f".{path.name}")
    temporary.write_text("".join(f"{line}\n" for line in kept))
    temporary.replace(path)


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
