"""Signatures of records: a record that would start something else than before no longer counts as the user's own.

When a run is recorded, changed or trusted, a hash of all files that determine what is started, and its path, are stored
in the user's state folder; never in the record, which could carry a forged one.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from launcher.base import cache, files
from launcher.job.run_script import FOLDER
from launcher.rundir.state import SWEEP

_ALWAYS = ("home.json", "job.json", "plan.json", "spec.json", SWEEP)
"""``home.json`` says which path is replaced in the job's files, and ``plan.json`` whether the run was forced."""

_HASH = 64  # Characters of a SHA-256, at the start of each line of the list.
_LIST_BYTES = 1 << 19  # Thousands of records; from a longer list, records that no longer exist are removed.


def digest(record: Path) -> str:
    """The hash of what a run or sweep would start."""
    found = hashlib.sha256()
    for path in acting_files(record):
        name = str(path.relative_to(record)).encode(errors="surrogateescape")
        try:
            content = files.read_bytes(path, files.MOST_OF_A_LOG)
        except OSError as error:  # Its name still counts: a file too large to read may still be started.
            content = type(error).__name__.encode()
        found.update(b"%b %d\n" % (name, len(content)))
        found.update(content)
    return found.hexdigest()


def acting_files(record: Path) -> list[Path]:
    """The files of a record that its job runs or reads."""
    job = files.read_json(record / "job.json") or {}
    generated = job.get("files")
    names = {*_ALWAYS, *(str(name) for name in (generated if isinstance(generated, list) else ()))}
    inside = [record / name for name in sorted(names) if Path(name).name == name]
    copies = sorted((record / FOLDER).iterdir()) if (record / FOLDER).is_dir() else []
    return [path for path in (*inside, *copies) if path.is_file()]


def note(record: Path) -> None:
    """Store the signature of a record as it is now; a list that cannot be written is ignored."""
    _add(user_list("records.txt"), record)


def is_own(record: Path) -> bool:
    """True if a run or sweep is, byte for byte and at this path, as this user recorded or trusted it."""
    return _last(user_list("records.txt"), record) == digest(record)


def note_shown(record: Path) -> None:
    """Store the signature of a foreign record as it was shown to the user."""
    _add(user_list("shown.txt"), record)


def is_as_shown(record: Path) -> bool:
    """True unless a record was shown and would start something else now."""
    shown = _last(user_list("shown.txt"), record)
    return shown is None or shown == digest(record)


def append_line(path: Path, line: str, most_bytes: int, lives: Callable[[str], bool]) -> None:
    """Append a line to a list of the user; from a list beyond ``most_bytes``, lines that no longer live are removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and path.stat().st_size > most_bytes:
        kept = "".join(f"{each}\n" for each in read_lines(path) if lives(each))
        files.write_bytes_atomically(path, os.fsencode(kept))
    with path.open("ab") as file:
        file.write(os.fsencode(f"{line}\n"))  # One short append: lines of concurrent launchers do not interleave.


def read_lines(path: Path) -> list[str]:
    """The lines of a list of the user, oldest first; empty if there is no such list."""
    try:
        return [line for line in os.fsdecode(files.read_bytes(path, files.MOST_OF_A_RECORD)).split("\n") if line]
    except OSError:
        return []


def user_list(name: str) -> Path:
    """The path of a list in the user's state folder."""
    return cache.folder("state") / name


def _add(path: Path, record: Path) -> None:
    with contextlib.suppress(OSError):
        line = f"{digest(record)} {_place(record)}"
        append_line(path, line, _LIST_BYTES, lambda each: Path(each[_HASH + 1 :]).is_dir())


def _last(path: Path, record: Path) -> str | None:
    place = _place(record)
    return next((line[:_HASH] for line in reversed(read_lines(path)) if line[_HASH + 1 :] == place), None)


def _place(record: Path) -> str:
    return os.path.realpath(record).replace("\n", "\\n")
