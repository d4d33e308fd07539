"""Saving that is paused because the disk is full, as the worker notes it and ``launch status`` says it."""

from __future__ import annotations

import time
from pathlib import Path

from launcher.base import files

FILE = "saving_paused.json"
"""In the run's ``logs/``, which a full disk for checkpoints need not be; there while saving is paused."""


def note(run: Path, step: int, reason: str) -> None:
    """Note that the checkpoint of a step was left out, and why; the first such step is kept."""
    path = run / "logs" / FILE
    since = (files.read_json(path) or {}).get("since", step)
    files.write_atomically(path, {"since": since, "step": step, "reason": reason, "time": time.time()})


def end(run: Path) -> None:
    """A checkpoint was written again, or the run has begun anew."""
    (run / "logs" / FILE).unlink(missing_ok=True)


def text(run: Path) -> str | None:
    """One line about a run whose saving is paused; None for any other."""
    found = files.read_json(run / "logs" / FILE)
    if found is None:
        return None
    since, reason = found.get("since"), found.get("reason")
    return f"saving is paused since step {since}, and tried again when the next is due: {reason}"
