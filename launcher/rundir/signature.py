"""The files of a record that say what is started, known by their bytes: one that was changed since is not the user's.

Noted is a hash of all files that decide what is started, and where, when a run is recorded, changed by ``launch
resume``, or trusted. The list lies in the user's state folder, never in the record, which could bring it along. A
record that was never noted is nobody's own, wherever it lies: in a run or a sweep of the user's own, too, or where an
earlier version has recorded it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from launcher.base import files
from launcher.job.run_script import FOLDER
from launcher.rundir.state import SWEEP

_ALWAYS = ("home.json", "job.json", "plan.json", "spec.json", SWEEP)
"""``home.json`` says which path the job's words are rid of, and ``plan.json`` whether the run was forced."""

_HASH = 64
"""Characters of a SHA-256, at the begin of each line of the list."""

_LIST_BYTES = 1 << 19
"""Thousands of records; a longer list loses those that are gone."""


def digest(record: Path) -> str:
    """The hash of what a run or sweep would start."""
    found = hashlib.sha256()
    for path in acting_files(record):
        name = str(path.relative_to(record)).encode(errors="surrogateescape")
        try:
            content = files.read_bytes(path, files.MOST_OF_A_LOG)
        except OSError as error:  # Its name counts all the same: a file that is too large to read may still be started.
            content = type(error).__name__.encode()
        found.update(b"%b %d\n" % (name, len(content)))
        found.update(content)
    return found.hexdigest()


def acting_files(record: Path) -> list[Path]:
    """The files of a record that its job starts, or is told by."""
    job = files.read_json(record / "job.json") or {}
    generated = job.get("files")
    names = {*_ALWAYS, *(str(name) for name in (generated if isinstance(generated, list) else ()))}
    inside = [record / name for name in sorted(names) if Path(name).name == name]
    copies = sorted((record / FOLDER).iterdir()) if (record / FOLDER).is_dir() else []
    return [path for path in (*inside, *copies) if path.is_file()]


def note(record: Path) -> None:
    """Note what a record would start as it is now; a list that cannot be kept is no reason to fail."""
    _add(_list(), record)


def is_noted(record: Path) -> bool:
    """True if a record would start what it did when it was noted at its place."""
    return _last(_list(), record) == digest(record)


def note_shown(record: Path) -> None:
    """Note what was shown of a record that is not the user's own."""
    _add(_list("shown.txt"), record)


def is_as_shown(record: Path) -> bool:
    """True unless a record was shown and would start something else by now."""
    shown = _last(_list("shown.txt"), record)
    return shown is None or shown == digest(record)


def _add(path: Path, record: Path) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.stat().st_size > _LIST_BYTES:
            lines = [f"{line}\n" for line in _lines(path) if line and Path(line[_HASH + 1 :]).is_dir()]
            files.write_bytes_atomically(path, os.fsencode("".join(lines)))
        with path.open("ab") as file:  # One short write: launchers do not mix their lines.
            file.write(os.fsencode(f"{digest(record)} {_place(record)}\n"))


def _last(path: Path, record: Path) -> str | None:
    """The hash that was noted last; None where none was."""
    place = _place(record)
    return next((line[:_HASH] for line in reversed(_lines(path)) if line[_HASH + 1 :] == place), None)


def _place(record: Path) -> str:
    """Where a record lies, in one line, whatever its name is."""
    return os.path.realpath(record).replace("\n", "\\n")


def _lines(path: Path) -> list[str]:
    """The list: a hash and a place a line, oldest first."""
    try:
        return os.fsdecode(files.read_bytes(path, files.MOST_OF_A_RECORD)).split("\n")
    except OSError:
        return []


def _list(name: str = "records.txt") -> Path:
    from platformdirs import user_state_path  # Late, because a planning import stays fast.

    return user_state_path("launch") / name
