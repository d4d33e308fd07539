"""The copy of a user's script in its run directory, which the job runs: an edit after the submission does not reach it.

Only the file itself is kept. What it imports from its own folder is read there when the job starts.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

from launcher.base import files, secret
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.job.run_script import FOLDER
from launcher.spec import RunSpec, edit


def place(run: Path, script: str) -> Path:
    """Where a run keeps the copy of its script."""
    return run / FOLDER / Path(script).name


def keep(run: Path, spec: RunSpec) -> None:
    """Copy the script into a run directory; one that only the job's nodes see stays where it is.

    Raises:
        OSError: It cannot be copied.
    """
    if spec.script is not None and Path(spec.script).is_file():
        copy = place(run, spec.script)
        copy.parent.mkdir()
        shutil.copyfile(spec.script, copy)


def require_no_secret(spec: RunSpec) -> None:
    """Refuse a script that holds a token of a well-known form, since the run keeps a copy of it.

    Raises:
        ConfigErrors: It does; the error names the line.
        OSError: It cannot be read.
    """
    if spec.script is None or not Path(spec.script).is_file():
        return
    lines = files.read_text(Path(spec.script), files.MOST_OF_A_RECORD, errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        if (form := secret.known(line)) is not None:
            rule = f"line {number} holds {form.title}, and the run keeps a copy: read it from the environment there"
            names = dict.fromkeys([*spec.cluster.pass_environment, form.variable])
            way_out = [edit.override("cluster.pass_environment", list(names))]
            raise ConfigErrors([ConfigError("script", spec.script, rule, way_out)])


def ingredient(script: str | None) -> dict[str, Any] | None:
    """The script as a lock holds it: its path and hash; None for a run without one."""
    return None if script is None else {"path": script, "sha256": _digest(Path(script))}


def kept_ingredient(run: Path, script: str | None) -> dict[str, Any] | None:
    """As :func:`ingredient`, of the copy that a run has: it is what goes on, whatever became of the script."""
    copy = None if script is None else _digest(place(run, script))
    return ingredient(script) if copy is None else {"path": script, "sha256": copy}


def is_edited(run: Path, spec: RunSpec, folder: Path) -> bool:
    """True if the script was edited, or removed, since the run was recorded.

    Args:
        run: The run directory.
        spec: The run.
        folder: The working folder of the job, from which the script's path starts.
    """
    if spec.script is None:
        return False
    copy = _digest(place(run, spec.script))
    return copy is not None and copy != _digest(folder / spec.script)


def _digest(path: Path) -> str | None:
    """The hash of a file; None where there is none."""
    try:
        return hashlib.sha256(files.read_bytes(path, files.MOST_OF_A_RECORD)).hexdigest()
    except OSError:
        return None
