"""Files and folders that appear whole or not at all, also when the process or the machine ends meanwhile."""

import json
import math
import os
import shutil
from pathlib import Path
from typing import BinaryIO

from launcher.base.files import descriptor

_BLOCK = 1 << 16  # Bytes that are read at once.


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
    """Cut the lines of later steps and a partial last line off a file of JSON lines, read backwards from its end."""
    if not path.exists():
        return
    with os.fdopen(descriptor(path, os.O_RDWR), "r+b") as file:
        file.truncate(_end_of(file, step))


def _end_of(file: BinaryIO, step: int) -> int:
    end, block = file.seek(0, os.SEEK_END), _BLOCK
    while end:
        start = max(0, end - block)
        file.seek(start)
        data = file.read(end - start)
        first = data.find(b"\n", 0, len(data) - 1) + 1 if start else 0
        if start and not first:  # A line is longer than the block.
            block *= 2
            continue
        for line in reversed(data[first:].splitlines(keepends=True)):
            if line.endswith(b"\n") and _step_of(line) <= step:
                return end
            end -= len(line)
    return 0


def _step_of(line: bytes) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf
