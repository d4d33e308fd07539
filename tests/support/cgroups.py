"""Processes in their own memory cgroup, whose limit the kernel enforces; needs root and the cgroup files."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def _parent() -> Path | None:
    for folder in (_ROOT / "memory", _ROOT):
        if (folder / "cgroup.procs").exists() and os.access(folder, os.W_OK):
            version2 = folder == _ROOT
            if not version2 or "memory" in (folder / "cgroup.subtree_control").read_text().split():
                return folder
    return None


@contextlib.contextmanager
def limited(limit: int) -> Iterator[Path | None]:
    """A new cgroup with a memory limit in bytes; None if this machine does not allow one."""
    parent = _parent()
    folder = None if parent is None else parent / f"launch-test-{os.getpid()}-{time.monotonic_ns()}"
    try:
        if folder is not None:
            folder.mkdir()
            name = "memory.limit_in_bytes" if (folder / "memory.limit_in_bytes").exists() else "memory.max"
            (folder / name).write_text(str(limit))
    except OSError:
        folder = None
    try:
        yield folder
    finally:
        if folder is not None:
            _remove(folder)


def _remove(folder: Path) -> None:
    for _ in range(50):  # Killed processes take a moment to disappear.
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.1)


def start(folder: Path, argv: Sequence[str], *, rather: bool = False, **options: object) -> subprocess.Popen[str]:
    """Start a program in the cgroup; its children are in it as well.

    Args:
        folder: The cgroup.
        argv: The program.
        rather: True if the kernel should kill these processes before others.
        options: Of ``Popen``.
    """
    first = "echo 900 > /proc/self/oom_score_adj; " if rather else ""
    within = ["sh", "-c", f'{first}echo $$ > {folder}/cgroup.procs; exec "$@"', "sh", *argv]
    return subprocess.Popen(within, text=True, **options)  # type: ignore[call-overload, no-any-return]
