"""The result file: always complete on disk, and read again by a run that continues it."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.reporting import machine
from launcher.base.files import read_json, write_text_atomically
from launcher.base.machine import Machine
from launcher.rundir.provenance import software, versions

METHOD = (
    "rank 0 of each world, in a process of its own; of more than one rank, the others do not exist (torch's fake "
    "process group); seconds of a step are medians of the steps after the warm-up, the device waited for"
)
REHEARSAL = "a rehearsal: every run with a tiny model on the CPU, to see that it starts; no figure in here is a result"


class DocumentError(Exception):
    """The file cannot be written or continued; the message is for the user."""


class Document:
    """The results so far; every addition is written at once.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, here: Machine, *, rehearsal: bool, resume: bool) -> None:
        """Begin a file, or continue an existing one.

        Raises:
            DocumentError: The file cannot be written, or it is of another machine.
        """
        self.path = path
        cards = [asdict(gpu) for gpu in here.gpus]
        self._content: dict[str, Any] = {
            "schema": 2,
            "command": "python -m benchmarks.gpu",
            "date": time.strftime("%Y-%m-%d"),
            "rehearsal": rehearsal,
            "machine": {**machine(), "gpus": cards},
            "versions": {**_versions(), **software()},
            "method": REHEARSAL if rehearsal else METHOD,
            "runs": [],
            "training": [],
            "tasks": [],
        }
        if resume:
            self._content |= self._answered()
        elif not rehearsal and any(row["measured"] for row in (self._there() or {}).get("runs", ())):
            raise DocumentError(f"{path} has measured rows: --resume keeps them, and --out names another file")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write()
        except OSError as error:
            raise DocumentError(f"{path} cannot be written ({error.strerror}): name another file by --out") from error

    def add(self, part: str, row: dict[str, Any]) -> None:
        """Add a row to ``runs``, ``training`` or ``tasks``, replacing an earlier one of the same name."""
        rows, git = self._content[part], self._content["versions"]["git"]
        row.setdefault("date", self._content["date"])
        row.setdefault("commit", git and git["commit"])
        rows[:] = [other for other in rows if other["name"] != row["name"]] + [row]
        self._write()

    def earlier(self, part: str, name: str, overrides: list[str]) -> dict[str, Any] | None:
        """The row of that name, if the file already has a result for the same run."""
        rows = (row for row in self._content[part] if row["name"] == name and row["overrides"] == overrides)
        return next(rows, None)

    def rows(self, part: str) -> list[dict[str, Any]]:
        """The rows added so far."""
        return list(self._content[part])

    def _answered(self) -> dict[str, list[dict[str, Any]]]:
        """The existing file's rows with a result; running out of memory is a result."""
        found = self._there()
        if found is None and not self.path.exists():
            return {}
        if found is None or found.get("schema") != self._content["schema"]:
            raise DocumentError(f"--resume: {self.path} is no file of this benchmark: leave --resume out")
        if (_cards(found), found["rehearsal"]) != (_cards(self._content), self._content["rehearsal"]):
            raise DocumentError(f"--resume: {self.path} was measured on other devices: name another file by --out")
        git = found["versions"]["git"]
        measured = {"date": found["date"], "commit": git and git["commit"]}  # A row keeps its own, where it has one.
        return {
            part: [measured | row for row in found.get(part, ()) if row["measured"] or row["error"] == "out of memory"]
            for part in ("runs", "training", "tasks")
        }

    def _there(self) -> dict[str, Any] | None:
        return read_json(self.path)

    def _write(self) -> None:
        write_text_atomically(self.path, json.dumps(self._content, indent=1) + "\n")


def _cards(content: dict[str, Any]) -> list[tuple[str, int]]:
    """Name and bytes of each card; the driver's own share may differ between machines."""
    return [(card["name"], card["memory_bytes"]) for card in content["machine"]["gpus"]]


def _versions() -> dict[str, Any]:
    found = versions()
    if found["git"]:
        found["git"] = {key: found["git"][key] for key in ("commit", "dirty")}
    return found
