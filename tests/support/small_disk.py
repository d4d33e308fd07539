"""A file system of a given size, if this process may mount one; otherwise the test is skipped with the reason."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(place: Path, kib: int) -> Iterator[Callable[[int], None]]:
    """Mount a file system in an empty folder; the yielded function changes its size, in KiB."""
    place.mkdir(parents=True, exist_ok=True)
    done = _mount(place, f"size={kib}k")
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")

    def resize(kib: int) -> None:
        changed = _mount(place, f"remount,size={kib}k")
        assert changed.returncode == 0, changed.stderr

    try:
        yield resize
    finally:
        deadline = time.monotonic() + 60
        while subprocess.run(["umount", place], check=False, capture_output=True).returncode != 0:
            assert time.monotonic() < deadline, f"{place} is still in use"
            time.sleep(0.1)


def _mount(place: Path, options: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=False, capture_output=True, text=True
        )
    except FileNotFoundError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
