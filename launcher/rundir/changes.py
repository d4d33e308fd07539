"""The settings of a run that was changed between two attempts: which attempt had which, and nothing lost.

``spec.json``, ``plan.json``, ``job.json``, the lock and the engine's files are those of the newest settings. What they
were before lies in ``settings/<n>/``, and ``changes.json`` says, one entry a change, from which step on which keys had
which values, and where the settings before are kept.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.base.errors import SubmitError
from launcher.config import open_values
from launcher.preflight.plan import Plan
from launcher.rundir import contents, lock, losses, script_copy, signature
from launcher.rundir.record import job_as_dict, write_settings

FILE = "changes.json"
KEPT = "settings"
_ALWAYS = ("spec.json", "plan.json", "job.json", losses.NAME)

type Change = tuple[str, Any, Any]
"""A key, its value before and its value now."""


def write(run: Path, plan: Plan, changes: Sequence[Change], *, words: Sequence[str], step: int) -> None:
    """Put new settings in the place of a run's, and keep those before; the working folder is the job's.

    Args:
        run: The run directory.
        plan: The run as it is from now on.
        changes: What differs.
        words: The overrides that say so; they stand behind those that the run was made of.
        step: The step that the run goes on from.

    Raises:
        SubmitError: The directory cannot be written.
    """
    before = contents.read(run, contents.PLAN) or {}
    overrides = (*_still_said(before.get("overrides", ()), words), *words)
    partial = run / f".{KEPT}.{os.getpid()}.partial"
    try:
        partial.mkdir()
        content = lock.build(plan, job_as_dict(plan.job), overrides)
        content["script"] = script_copy.kept_ingredient(run, plan.spec.script)
        lock.write(partial / losses.NAME, content)
        write_settings(partial, run, plan, overrides, forced=bool(before.get("forced")))
        kept = _kept(run, sorted({*_ALWAYS, *contents.known(run, contents.JOB).get("files", ())}))
        for path in sorted(partial.iterdir(), key=lambda path: path.name == "spec.json"):  # The worker reads this one.
            path.replace(run / path.name)
        losses.add_losses(run)
        signature.note(run)
        _note(run, changes, words=words, step=step, kept=kept)
    except OSError as error:
        raise SubmitError(f"the run directory {run} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read(run: Path) -> list[dict[str, Any]]:
    """The changes of a run, oldest first: ``time step overrides changes before``."""
    found: list[dict[str, Any]] = (contents.read(run, FILE) or {}).get("changes", [])
    return found


def _still_said(earlier: Sequence[str], words: Sequence[str]) -> list[str]:
    """Earlier words that still describe the run: neither their key nor the group that it lies in is chosen anew."""
    keys = {word.partition("=")[0].lstrip("+") for word in words}
    keys |= open_values.displaced_lengths((key, value) for key, _, value in (word.partition("=") for word in words))
    within = tuple(f"{key}." for key in keys)
    said = ((word, word.partition("=")[0].lstrip("+")) for word in earlier)
    return [word for word, key in said if key not in keys and not key.startswith(within)]


def _kept(run: Path, names: Sequence[str]) -> str:
    """Copy the settings that are in force into a folder of their own; its path in the run directory."""
    (run / KEPT).mkdir(exist_ok=True)
    number = 1 + sum(1 for _ in (run / KEPT).iterdir())
    folder = run / KEPT / str(number)
    folder.mkdir()
    for name in names:
        if (run / name).is_file():
            shutil.copy2(run / name, folder / name)
    return f"{KEPT}/{number}"


def _note(run: Path, changes: Sequence[Change], *, words: Sequence[str], step: int, kept: str) -> None:
    entry = {
        "time": round(time.time(), 3),
        "step": step,
        "overrides": list(words),
        "changes": [{"path": path, "before": before, "after": after} for path, before, after in changes],
        "before": kept,
    }
    files.write_atomically(run / FILE, {"schema": 1, "changes": [*read(run), entry]})
