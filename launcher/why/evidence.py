"""Evidence: the line of a run's file that says so, found by what stands in it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.base import files, secret
from launcher.base.terminal import visible
from launcher.why.answer import Evidence

_LONGEST = 200
_MOST_BYTES = 1 << 26
"""Of a log that is searched for a line; of a longer one the end is read, and its lines have no numbers."""


def of_file(run: Path, path: Path, text: str, line: int | None = 1) -> Iterator[Evidence]:
    """A file as a whole, where it exists."""
    if path.is_file():
        yield Evidence(file=_named(run, path), line=line, text=_short(text))


def of_line(run: Path, path: Path, matches: str | Callable[[str], bool]) -> Iterator[Evidence]:
    """The last line of a file that a pattern is found in, or that a function says yes to; none where there is none."""
    test = matches if callable(matches) else _searching(matches)
    found: tuple[int | None, str] | None = None
    with contextlib.suppress(OSError), files.opened(path) as file:
        skipped = path.stat().st_size > _MOST_BYTES
        if skipped:
            file.seek(-_MOST_BYTES, 2)
        for number, raw in enumerate(file, 1):
            text = raw.decode(errors="replace").rstrip()
            if test(text):
                found = (None if skipped else number, text)
    if found is not None:
        yield Evidence(file=_named(run, path), line=found[0], text=_short(found[1]))


def _searching(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern)
    return lambda text: compiled.search(text) is not None


def _named(run: Path, path: Path) -> str:
    return str(path.relative_to(run)) if path.is_relative_to(run) else str(path)


def _short(text: str) -> str:
    line = visible(secret.hidden(" ".join(text.split())))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
