"""Answers kept in the user's state folder, where ``check`` and ``run`` find them (``launcher.preflight.evidence``)."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

from launcher import files
from launcher.preflight import evidence
from launcher.rehearsing import result
from launcher.rehearsing.result import Rehearsal
from launcher.spec import RunSpec

_KEPT = 3
"""Rehearsals of one run whose files stay, the newest: each holds a specification and a log."""


def new_folder(spec: RunSpec) -> Path:
    """A folder for the files of a new rehearsal of a run, below the place where its answer is kept.

    Raises:
        OSError: It cannot be written.
    """
    place = evidence.place(spec)
    place.mkdir(parents=True, exist_ok=True)
    old = sorted(path for path in place.iterdir() if path.is_dir())
    for path in old[: len(old) + 1 - _KEPT]:
        shutil.rmtree(path, ignore_errors=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1, 1000):
        folder = place / (stamp if number == 1 else f"{stamp}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("a thousand rehearsals in one second")


def as_dict(rehearsal: Rehearsal) -> dict[str, Any]:
    """The document that is kept: the answer, and what a later run needs of it."""
    part = rehearsal.as_dict()
    return {"schema": 1, "rehearse": part, "evidence": part["evidence"]}


def keep(folder: Path, rehearsal: Rehearsal) -> None:
    """Keep an answer in a folder: a run's own, or the one of a Slurm job.

    Raises:
        OSError: It cannot be written.
    """
    files.write_text_atomically(folder / evidence.RESULT, json.dumps(as_dict(rehearsal)) + "\n")


def note_submitted(spec: RunSpec, directory: Path) -> None:
    """Note the run directory of a rehearsal that is a Slurm job, where its answer will be.

    Raises:
        OSError: It cannot be written.
    """
    place = evidence.place(spec)
    place.mkdir(parents=True, exist_ok=True)
    files.write_atomically(place / evidence.SUBMITTED, {"directory": str(directory)})


def read(folder: Path) -> Rehearsal | None:
    """The answer in a folder; None where there is none yet, or one of another version."""
    content = files.read_json(folder / evidence.RESULT)
    try:
        return None if content is None else result.read(content["rehearse"])
    except (KeyError, TypeError, AttributeError):
        return None
