"""Signatures of records: a record that would start something else than it did is no longer the user's own.

Noted is a hash of all files that decide what is started, and where, when a run is recorded, changed, or trusted: in the
user's state folder, never in the record, which could bring it along.
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
"""``home.json`` says which path the job's words are rid of, and ``plan.json`` whether the run was forced."""

_HASH = 64  # Characters of a SHA-256, at the begin of each line of the list.
_LIST_BYTES = 1 << 19  # Thousands of records; a longer list loses those that are gone.


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
    _add(user_list("records.txt"), record)


def is_own(record: Path) -> bool:
    """True if a run or sweep is, byte by byte, as this user recorded or trusted it at the place where it lies."""
    return _last(user_list("records.txt"), record) == digest(record)


def note_shown(record: Path) -> None:
    """Note a record that is not the user's own as it was shown."""
    _add(user_list("shown.txt"), record)


def is_as_shown(record: Path) -> bool:
    """True unless a record was shown and would start something else by now."""
    shown = _last(user_list("shown.txt"), record)
    return shown is None or shown == digest(record)


def append_line(path: Path, line: str, most_bytes: int, lives: Callable[[str], bool]) -> None:
    """Append a line to a list of the user's; of a list longer than so many bytes only lines that live stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and path.stat().st_size > most_bytes:
        kept = "".join(f"{each}\n" for each in read_lines(path) if lives(each))
        files.write_bytes_atomically(path, os.fsencode(kept))
    with path.open("ab") as file:
        file.write(os.fsencode(f"{line}\n"))  # One short write in append mode: launchers do not mix their lines.


def read_lines(path: Path) -> list[str]:
    """The lines of a list of the user's, oldest first; none where there is no such list."""
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
