"""The user's record of trust: files by the hash of their exact bytes, and repositories.

It is one file of JSON lines in the user's state folder, never next to the files it is about, which could ship a forged
one. Lines are only appended, each in one write, so that concurrent launchers do not mix or overwrite their lines.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import field
from pathlib import Path

from launcher.base import cache, files
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass

NAME = "trust.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustRecord:
    """The whole record."""

    # Hashes of files that the user trusted, or that were written for the user from their own overrides.
    trusted: set[str] = field(default_factory=set)
    locks: set[str] = field(default_factory=set)  # Hashes of the locks of the user's own runs, without their losses.
    foreign: dict[str, str] = field(default_factory=dict)  # Hashes of files from elsewhere, with their origin.
    # Paths that files from elsewhere were written to, with their origin.
    places: dict[str, str] = field(default_factory=dict)
    # Marks of the code that files from elsewhere name (``PrivilegedSetting.mark``), with its origin.
    marks: dict[str, str] = field(default_factory=dict)
    origins: set[str] = field(default_factory=set)  # URLs of trusted repositories.


def known() -> TrustRecord:
    """Return the record; raises ConfigErrors if it exists but cannot be read, since foreign files are then unknown."""
    found = TrustRecord()
    for entry in files.json_objects(_text(cache.folder("state") / NAME).splitlines()):
        _take(found, entry)
    return found


def _take(found: TrustRecord, entry: JsonObject) -> None:
    kind, digest, source = (str(entry.get(key, "")) for key in ("is", "sha256", "source"))
    if kind == "trusted":
        found.trusted.add(digest)
    elif kind == "lock":
        found.locks.add(digest)
    elif kind == "origin":
        found.origins.add(source)
    elif kind == "foreign":
        found.foreign[digest] = source
        found.places[str(entry.get("path", ""))] = source
        marks = entry.get("marks")
        found.marks.update({str(mark): source for mark in marks} if isinstance(marks, list) else {})


def add(kind: str, **entry: str | list[str]) -> None:
    """Record a file as ``trusted``, a ``lock`` or ``foreign``, or a repository as a trusted ``origin``.

    Raises ConfigErrors: The folder for the state of programs cannot be written.
    """
    path = cache.folder("state") / NAME
    line = f"\n{json.dumps({'is': kind, **entry})}\n".encode()  # The newline first ends a line that was cut short.
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
        try:
            if os.write(file, line) < len(line):
                raise OSError(0, "no space left")
        finally:
            os.close(file)
    except OSError as error:
        rule = f"the record of trust cannot be written: {error.strerror}"
        raise ConfigErrors([ConfigError(str(path), None, rule, ["XDG_STATE_HOME=..."])]) from None


def add_origins(urls: Iterable[str]) -> None:
    """Record repositories as trusted."""
    for url in urls:
        add("origin", source=url)


def _text(path: Path) -> str:
    try:
        return files.read_text(path, files.MOST_OF_A_RECORD, errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        rule = f"the record of trust cannot be read: {error.strerror}"
        raise ConfigErrors([ConfigError(str(path), None, rule, ["XDG_STATE_HOME=..."])]) from None
