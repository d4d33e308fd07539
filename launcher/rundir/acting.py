"""The files of a record that say what is started, known by their bytes: one that was changed since is not the user's.

Noted is a hash of ``job.json``, ``spec.json``, the generated files and the script's copy, or of the words of a sweep,
when a run is recorded, changed by ``launch resume``, or trusted. The list lies in the user's state folder, never in the
record, which could bring it along. A record of an earlier version has no line there and is known by its place alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from launcher import files
from launcher.job.run_script import FOLDER
from launcher.rundir.state import SWEEP

_ALWAYS = ("job.json", "spec.json")
_LIST_BYTES = 1 << 19
"""Thousands of records; a longer list loses those that are gone."""


def digest(record: Path) -> str:
    """The hash of what a run or sweep would start."""
    found = hashlib.sha256()
    for path in acting_files(record):
        with contextlib.suppress(OSError):
            content = files.read_bytes(path, files.MOST_OF_A_LOG)
            found.update(f"{path.relative_to(record)} {len(content)}\n".encode(errors="surrogateescape"))
            found.update(content)
    if (record / SWEEP).is_file():
        sweep = files.read_json(record / SWEEP) or {}
        found.update(json.dumps([sweep.get("overrides"), sweep.get("forced")]).encode())
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


def is_unchanged(record: Path) -> bool:
    """True if a record would start what it did when it was noted, or never was: of an earlier version."""
    noted = _last(_list(), record)
    return noted is None or noted == digest(record)


def is_noted(record: Path) -> bool:
    """True if a record was noted by its bytes, as all are but those of earlier versions."""
    return _last(_list(), record) is not None


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
            lines = [line for line in _read(path).splitlines(keepends=True) if Path(line[65:-1]).is_dir()]
            files.write_text_atomically(path, "".join(lines))
        with path.open("a") as file:
            file.write(f"{digest(record)} {record.resolve()}\n")  # One short write: launchers do not mix their lines.


def _last(path: Path, record: Path) -> str | None:
    """The hash that was noted last; None where none was."""
    text = _read(path)
    at = text.rfind(f" {record.resolve()}\n")
    return None if at < 0 else text[text.rfind("\n", 0, at) + 1 : at]


def _read(path: Path) -> str:
    """The list: a hash and a place a line, oldest first."""
    return files.end_of(path, files.MOST_OF_A_RECORD)


def _list(name: str = "records.txt") -> Path:
    from platformdirs import user_state_path  # Late, because a planning import stays fast.

    return user_state_path("launch") / name
