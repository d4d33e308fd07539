"""The folder that a run is at home in, by which one that was moved or copied is known.

``home.json`` holds the folder's path and inode. A run in another folder with this inode was moved, or is seen under
another path; with another inode it is a copy: whatever it says of a job that waits or runs is about the original, whose
processes a copy must neither claim nor end. Records keep ``{run}`` where the run directory belongs. What has to name it
(generated files, which an engine reads as they are, and all records of earlier versions) is written anew by
:func:`settle` when the run goes on in its new place.
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.data.token_folder import POINTER
from launcher.job.job import RUN
from launcher.rundir import attempts, contents, signature, state

FILE = "home.json"


def write(folder: Path, directory: Path) -> None:
    """Note in a run directory, which may still have another name, where it will lie.

    Raises:
        OSError: It cannot be written.
    """
    files.write_atomically(folder / FILE, {"directory": str(directory), "inode": folder.stat().st_ino})


def recorded(run: Path) -> Path | None:
    """The folder that the record was made for; None where it does not say.

    Records of earlier versions say it by the variable that their job gets.
    """
    try:
        content = contents.read(run, FILE)
    except contents.BadRecord:
        content = None
    told = content["directory"] if content else _variables(run).get("LAUNCH_RUN")
    return Path(told) if told and told != RUN else None


def original(run: Path) -> Path | None:
    """The folder of the run that this one is a copy of; None where it is no copy."""
    there = recorded(run)
    if there is None or _same(there, run):
        return None
    inode = contents.known(run, FILE).get("inode")
    with contextlib.suppress(OSError):
        if inode == run.stat().st_ino:
            return None
    return there


def here(run: Path, path: Path) -> Path:
    """A path that was noted when the run lay elsewhere, as it is now; paths outside of the run stay.

    The runs of a sweep share folders beside them, so what lay in the sweep is looked for in this one.
    """
    there = recorded(run)
    if there is None:
        return path
    if path.is_relative_to(there):
        return run / path.relative_to(there)
    if (run.parent / state.SWEEP).is_file() and path.is_relative_to(there.parent):
        return run.parent / path.relative_to(there.parent)
    return path


def working_folder(run: Path) -> Path:
    """The folder that the run's job starts in, from which relative paths are looked at.

    Where it is gone, and the run lies as it did in another folder (``runs/a`` of a project that was moved), it is that.

    Raises:
        BadRecord: The job cannot be read.
    """
    was = Path(contents.job_of(run)["working_directory"])
    there = recorded(run)
    if was.is_dir() or there is None or not there.is_relative_to(was):
        return was
    below = there.relative_to(was).parts
    return Path(*run.parts[: -len(below)]) if run.parts[-len(below) :] == below else was


def settle(run: Path) -> None:
    """Make a run that lies elsewhere than it was recorded for at home where it is; the caller holds its lock.

    A copy gives up the job of its original: its state, its submission, and what was counted of its attempts.

    Raises:
        BadRecord: The job cannot be read.
        OSError: A file cannot be written.
    """
    there = recorded(run)
    if there is None or (there == run and contents.exists(run, FILE)):
        return
    job: dict[str, Any] = contents.read(run, contents.JOB) or {}
    folder = str(working_folder(run))
    copied = original(run) is not None
    if there != run:
        _name_anew(run, there, job.get("files", ()))
        job = {**_renamed(job, there, RUN), "working_directory": folder}
        files.write_text_atomically(run / contents.JOB, json.dumps(job, indent=1, sort_keys=True) + "\n")
    if copied:
        attempts.forget(run)
        for name in ("state.json", state.SUBMISSION, state.NOT_SUBMITTED, state.CANCEL_REQUEST):
            (run / name).unlink(missing_ok=True)
    write(run, run)
    signature.note(run)  # Only who owns or trusts a record comes here, and its files have just been rewritten.


def _name_anew(run: Path, there: Path, names: Any) -> None:
    """Put the run's place in its generated files, and in the note of its token ids where it holds them itself."""
    for name in (*names, POINTER):
        path = run / Path(name).name  # A record from elsewhere may name a file beyond its own folder.
        with contextlib.suppress(FileNotFoundError):
            text = files.read_text(path, files.MOST_OF_A_RECORD)
            changed = _renamed(text, there, RUN if name == POINTER else str(run))
            if changed != text:
                files.write_text_atomically(path, changed)


def _renamed(content: Any, there: Path, text: str) -> Any:
    if isinstance(content, str):
        return _pattern(there).sub(lambda _: text, content)
    if isinstance(content, list):
        return [_renamed(each, there, text) for each in content]
    if isinstance(content, dict):
        return {key: _renamed(each, there, text) for key, each in content.items()}
    return content


def _pattern(folder: Path) -> re.Pattern[str]:
    """The path of a folder, or the beginning of one in it; ``/runs/a`` does not begin ``/runs/ab``."""
    return re.compile(rf"(?<![\w./-]){re.escape(str(folder))}(?=$|[^\w.-])")


def _variables(run: Path) -> dict[str, str]:
    found: dict[str, str] = contents.known(run, contents.JOB).get("environment", {})
    return found


def _same(there: Path, run: Path) -> bool:
    if there == run:
        return True
    try:
        return there.samefile(run)
    except (OSError, ValueError):
        return False
