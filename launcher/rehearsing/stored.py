"""Answers kept in the user's state folder, where ``check`` and ``run`` find them (``launcher.preflight.evidence``)."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from pathlib import Path

from launcher.base import files, typed
from launcher.base.files import JsonObject
from launcher.preflight import evidence
from launcher.rehearsing.result import Rehearsal
from launcher.spec import RunSpec

_KEPT = 3  # Rehearsals of one run whose files stay, the newest: each holds a specification and a log.


def new_folder(spec: RunSpec) -> Path:
    """A new folder for a rehearsal's files, below the place of its answer. Raises OSError if it cannot be written."""
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


def as_dict(rehearsal: Rehearsal) -> JsonObject:
    """The document that is kept: the answer, and what a later run needs of it."""
    part = rehearsal.as_dict()
    return {"schema": 1, "rehearse": part, "evidence": part["evidence"]}


def keep(folder: Path, rehearsal: Rehearsal) -> None:
    """Keep an answer in a folder: a run's own, or the one of a Slurm job. Raises OSError if it cannot be written."""
    files.write_text_atomically(folder / evidence.RESULT, json.dumps(as_dict(rehearsal)) + "\n")


def keep_as_evidence(spec: RunSpec, rehearsal: Rehearsal) -> None:
    """Keep an answer where ``check`` and ``run`` of its run find it.

    A whole measurement decides for a device of any size. One that ended on a smaller device, or measured too little,
    does not take its place, unless it was of other versions or ran out of what had been enough.
    """
    before, now, place = evidence.read(spec), rehearsal.evidence, evidence.place(spec)
    if before is not None and before.versions == now.versions and before.is_whole and not now.is_whole:
        enough = before.used_bytes or 0
        if not (now.ran_out and now.device_bytes is not None and now.device_bytes >= enough):
            return
    place.mkdir(parents=True, exist_ok=True)
    keep(place, rehearsal)


def note_submitted(spec: RunSpec, directory: Path) -> None:
    """Note the run directory of a rehearsal that is a Slurm job. Raises OSError if it cannot be written."""
    place = evidence.place(spec)
    place.mkdir(parents=True, exist_ok=True)
    files.write_atomically(place / evidence.SUBMITTED, {"directory": str(directory)})


def read(folder: Path) -> Rehearsal | None:
    """The answer in a folder; None where there is none yet, or one of another version."""
    content = files.read_json(folder / evidence.RESULT) or {}
    try:
        return typed.read(Rehearsal, content.get("rehearse"))
    except typed.Unfit:
        return None
