"""The file of measured runs: plain text, a row a line, the newest last, written by many runs at once.

It is the user's own in the folder for the state of programs, or the one that ``cluster.measurements`` names. A row is
added by one write at the file's end under a lock on the file, so that no two rows are torn; of two rows of one run the
later one holds. A line that is no row is skipped and counted, and stays where it is. Only the newest rows are read, of
the last few megabytes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.base import files
from launcher.base.errors import SubmitError, unreadable
from launcher.preflight.measured import row as rows
from launcher.preflight.measured.row import Row

MOST_ROWS = 2000
"""Rows that are read, the newest: some hundred milliseconds at most."""

_MOST_BYTES = 4 << 20
_PATIENCE_S = 10.0
"""Seconds that a job's end waits for a lock on the file."""

_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a file holds.

    Attributes:
        path: The file.
        rows: One of each run, the newest last.
        unreadable: Lines that are no rows, with the reason of each.
    """

    path: Path
    rows: tuple[Row, ...] = ()
    unreadable: tuple[str, ...] = ()


def load(path: Path) -> Content:
    """The rows of a file; none where there is no file.

    Raises:
        OSError: It cannot be read.
    """
    try:
        descriptor = files.descriptor(path, os.O_RDONLY)
    except FileNotFoundError:
        return Content(path=path)
    with os.fdopen(descriptor, "rb") as file:
        start = max(0, os.fstat(descriptor).st_size - _MOST_BYTES)
        file.seek(start)
        lines = file.read(_MOST_BYTES).split(b"\n")[1 if start else 0 :]
    found: dict[tuple[str, str], Row] = {}
    bad = []
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    for number, line in numbered[-MOST_ROWS:]:
        try:
            row = rows.read(line)
        except (ValueError, RecursionError) as error:
            why = unreadable(error) if isinstance(error, ValueError) else "it is nested too deep"
            bad.append(f"line {len(lines) - number} from the end: {why}" if start else f"line {number}: {why}")
            continue
        found.pop((row.id, row.directory), None)
        found[row.id, row.directory] = row
    return Content(path=path, rows=tuple(found.values()), unreadable=tuple(bad))


def add(path: Path, row: Row) -> None:
    """Add a row; it takes the place of an earlier one of the same run.

    Raises:
        OSError: It cannot be written.
        ValueError: It is none that would be read again.
    """
    added = row.as_line()
    rows.read(added)
    with _locked(path, os.O_RDWR | os.O_APPEND | os.O_CREAT) as descriptor:
        size = os.fstat(descriptor).st_size
        whole = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
        line = added if whole else b"\n" + added
        if os.write(descriptor, line) < len(line):
            raise OSError(0, "no space left")


def forget(path: Path, lost: Row) -> None:
    """Take all rows of a run out of the file; every other line stays as it is, also those that are no rows.

    Raises:
        SubmitError: The file cannot be written.
    """
    try:
        with _locked(path, os.O_RDWR) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
            kept = b"".join(line for line in file if not _is_of(line, lost))
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                temporary.write_bytes(kept)
                shutil.copymode(path, temporary)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise SubmitError(f"{path} cannot be written: {unreadable(error)}") from None


def _is_of(line: bytes, lost: Row) -> bool:
    try:
        found = rows.read(line)
    except (ValueError, RecursionError):
        return False
    return (found.id, found.directory) == (lost.id, lost.directory)


@contextlib.contextmanager
def _locked(path: Path, flags: int) -> Iterator[int]:
    """The file under a lock; opened again where another launcher has put a new one in its place meanwhile.

    Raises:
        OSError: It cannot be opened, or others hold it for long.
    """
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        descriptor = files.descriptor(path, flags)
        try:
            # Without locks at once, since a row is one write at the end.
            if files.lock(descriptor) is not False and _is_still(path, descriptor):
                yield descriptor
                return
        finally:
            os.close(descriptor)
        time.sleep(_POLL_S)
    raise OSError(0, "others hold its lock")


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
