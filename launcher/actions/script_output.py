"""Output of a user's script while it is followed: rank 0's stdout and stderr, as they come; `launch logs` has all."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, TextIO

from launcher.base import files, terminal

_RANK_0 = "logs/ranks/*/attempt_*/0"


class Printed:
    """Passes on what rank 0 of a run prints from now on; attempts that are there already, of a resumed run, are old."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._old = set(directory.glob(_RANK_0))
        self._tails: dict[Path, files.Tail] = {}

    def show(self, _: list[dict[str, Any]] | None) -> None:
        """Print what is new; its metrics are the script's own to print."""
        for folder in sorted(set(self._directory.glob(_RANK_0)) - self._old):
            self._pass_on(folder / "stdout.log", terminal.raw(sys.stdout))
            self._pass_on(folder / "stderr.log", terminal.raw(sys.stderr))

    def _pass_on(self, path: Path, to: TextIO) -> None:
        tail = self._tails.setdefault(path, files.Tail(path, from_start=True))
        to.write(terminal.coloured(tail.text()))
        to.flush()
