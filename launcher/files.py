"""Files that are seen whole or not at all: a reader meets the old content or the new one."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: dict[str, Any]) -> None:
    """Write JSON under a temporary name and move it into place: a reader sees the old file or the new one."""
    write_text_atomically(path, json.dumps(content) + "\n")


def write_text_atomically(path: Path, text: str) -> None:
    """Write text under a temporary name and move it into place: a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def write_new(path: Path, content: bytes) -> None:
    """Write a file that must not exist yet, under a temporary name and then in its place: whole or not at all.

    Raises:
        FileExistsError: It exists.
        OSError: It cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        try:
            os.link(temporary, path)  # It fails where there is a file, which a rename would replace.
        except FileExistsError:
            raise
        except OSError:  # A file system without links.
            if path.exists():
                raise FileExistsError(path) from None
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON file's mapping, or None where there is none (yet)."""
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(path.read_text())
        if isinstance(content, dict):
            return content
    return None
