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


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON file's mapping, or None where there is none (yet); ``launcher.rundir.contents`` says why there is none."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        content = json.loads(path.read_text())
        if isinstance(content, dict):
            return content
    return None
