"""The home folder of a run: ``home.json`` holds its path and inode, which show whether the run was moved or copied.

A run at another path with the same inode was moved; with another inode it is a copy, which must neither claim nor end
the original's processes. Records use the placeholder ``{run}`` for the run directory; :func:`settle` rewrites files
that must contain the path itself.
"""

import contextlib
import json
import re
from pathlib import Path

from launcher.base import files
from launcher.base.files import JsonObject
from launcher.rundir import attempts, contents, signature, state

FILE = "home.json"


def write(folder: Path, directory: Path) -> None:
    """Record a run directory's final path in ``folder``, which may still have another name."""
    files.write_atomically(folder / FILE, {"directory": str(directory), "inode": folder.stat().st_ino})


def recorded(run: Path) -> Path | None:
    """The folder for which the record was made; None if unknown."""
    there = contents.known(run, FILE).get("directory")
    return None if there is None else Path(there)


def original(run: Path) -> Path | None:
    """The folder of the run that this one is a copy of; None if it is not a copy."""
    there = recorded(run)
    if there is None or _is_same(there, run):
        return None
    inode = contents.known(run, FILE).get("inode")
    with contextlib.suppress(OSError):
        if inode == run.stat().st_ino:
            return None
    return there


def here(run: Path, path: Path) -> Path:
    """The present form of a path recorded before the run or its sweep was moved; paths outside them are unchanged."""
    there = recorded(run)
    if there is None:
        return path
    if path.is_relative_to(there):
        return run / path.relative_to(there)
    if (run.parent / state.SWEEP).is_file() and path.is_relative_to(there.parent):
        return run.parent / path.relative_to(there.parent)
    return path


def working_folder(run: Path) -> Path:
    """The folder in which the run's job starts; if it is gone, the one at the same place relative to the moved run."""
    was = Path(contents.job_of(run)["working_directory"])
    there = recorded(run)
    if was.is_dir() or there is None or not there.is_relative_to(was):
        return was
    below = there.relative_to(was).parts
    return Path(*run.parts[: -len(below)]) if run.parts[-len(below) :] == below else was


def settle(run: Path) -> None:
    """Adopt a run at its present path, with its lock held; a copy drops the job and attempts of its original."""
    there = recorded(run)
    if there is None or there == run:
        return
    job: JsonObject = contents.read(run, contents.JOB) or {}
    folder = str(working_folder(run))
    copied = original(run) is not None
    for name in job.get("files", ()):
        _rename_in(run / Path(name).name, there, run)  # A foreign record may name a file outside its folder.
    text = json.dumps({**job, "working_directory": folder}, indent=1, sort_keys=True)
    files.write_text_atomically(run / contents.JOB, f"{text}\n")
    if copied:
        attempts.forget(run)
        for name in ("state.json", state.SUBMISSION, state.NOT_SUBMITTED, state.CANCEL_REQUEST):
            (run / name).unlink(missing_ok=True)
    write(run, run)
    signature.note(run)  # The user owns or trusts the record, whose files have just been rewritten.


def _rename_in(path: Path, there: Path, run: Path) -> None:
    """Replace the run's old path in a file by the new one; ``/runs/a`` does not match in ``/runs/ab``."""
    with contextlib.suppress(FileNotFoundError):
        text = files.read_text(path, files.MOST_OF_A_RECORD)
        changed = re.sub(rf"(?<![\w./-]){re.escape(str(there))}(?=$|[^\w.-])", lambda _: str(run), text)
        if changed != text:
            files.write_text_atomically(path, changed)


def _is_same(there: Path, run: Path) -> bool:
    try:
        return there == run or there.samefile(run)
    except (OSError, ValueError):
        return False
