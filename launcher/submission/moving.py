"""A run that was moved or copied, made ready to go on where it lies, before anything of it is started."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from launcher.base.errors import SubmitError
from launcher.rundir import home, lease, status
from launcher.saved import find


def settle(directory: Path) -> None:
    """Make a run at home where it lies; the caller holds its lock.

    Raises:
        SubmitError: Its job cannot be read, the folder that it starts in is gone, or the record cannot be written.
    """
    working_folder(directory)
    if home.original(directory) is not None and lease.is_renewed(directory):
        text = f"{directory} looks like a copy of {home.original(directory)}, but its heartbeat is renewed"
        raise SubmitError(f"{text}: it is the run itself, seen from here under another path; cancel it first, or wait")
    try:
        home.settle(directory)
    except OSError as error:
        raise SubmitError(f"the run directory {directory} cannot be written: {error.strerror or error}") from None


def working_folder(directory: Path, words: Sequence[str] = ()) -> Path:
    """The folder that the run's job starts in, wherever the command was typed.

    Args:
        directory: The run directory.
        words: Settings that were typed, for the way out.

    Raises:
        SubmitError: It is not there any more, or the job cannot be read.
    """
    where = home.working_folder(directory)
    if where.is_dir():
        return where
    name = status.name_of(directory, Path.cwd())
    load = [f"save.load={name}"] if find.checkpoints(directory) else []
    way = shlex.join(["launch", "run", "--from", name, *load, *words])
    text = f"the run's working folder {where} does not exist, and its job starts there: make the folder again, or"
    raise SubmitError(f"{text} go on in this one with another run of it: `{way}`")
