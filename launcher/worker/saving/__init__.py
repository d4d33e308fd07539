"""The agreement of all ranks about each part of a checkpoint: go on, pause saving while the disk is full, or fail.

A rank that cannot write must not leave the others in a collective that it will never come to.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from launcher.base import files, machine
from launcher.job import events
from launcher.saved.checkpoints import end_pause, note_pause
from launcher.worker import CheckpointError, shortage
from launcher.worker.engine import Context

FAILURES = (Exception, CheckpointException)
"""Exceptions of an engine that reads or writes; torch's ``CheckpointException`` is not an ``Exception``."""

_ALMOST_NOTHING = 2**20  # Bytes; below this a disk is full, whatever the error says.
_SHORT_WRITE = "unexpected pos"  # torch's zip writer, where a file took less than was written.


class Saving:
    """The agreement of all ranks about the checkpoints of one run."""

    def __init__(self, context: Context, kept: Callable[[], str | None]) -> None:
        """Begin without a pause; ``kept`` gives the name of the newest whole checkpoint."""
        self._context, self._kept = context, kept
        self._begun: dict[int, float] = {}
        self._blocked: dict[int, float] = {}
        if context.rank == 0:
            end_pause(context.directory)

    def together(self, step: int, folder: Path, act: Callable[[], object], *, last: bool) -> bool:
        """Do this rank's part of a save; True if all ranks have done theirs, False where saving is paused.

        A failure removes ``folder`` and is a CheckpointError on all ranks alike; a full disk only at the ``last`` save.
        """
        self._begun.setdefault(step, time.monotonic())
        try:
            act()
        except FAILURES as error:
            return self.agree(step, folder, error, last=last)
        return self.agree(step, folder, None, last=last)

    def agree(self, step: int, folder: Path, failed: BaseException | None, *, last: bool) -> bool:
        """Tell all ranks if this one has failed, and conclude as :meth:`together` does."""
        mine = None if failed is None else why(failed, folder.parent)
        found: list[tuple[bool, str] | None] = [mine] * self._context.world
        if dist.is_initialized():
            dist.all_gather_object(found, mine)
        troubles = [trouble for trouble in found if trouble is not None]
        if not troubles:
            return True
        self._begun.pop(step, None)  # It may be tried again.
        if self._context.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        # A writer that only hears of another rank's failure does not know the reason.
        full = [text for is_full, text in troubles if is_full]
        failure = self.error(step, folder.parent, full[0] if full else troubles[0][1])
        if last or not full:
            raise failure from failed
        if self._context.rank == 0:
            self._pause(step, f"{full[0]} ({folder.parent})", failure)
        return False

    def _pause(self, step: int, reason: str, error: CheckpointError) -> None:
        kept = self._kept()
        newest = f"{kept} is the newest checkpoint" if kept is not None else "there is no checkpoint yet"
        with contextlib.suppress(OSError):
            note_pause(self._context.directory, step, f"{reason}; {newest}")
        print(f"launch: {error}; training goes on", file=sys.stderr, flush=True)  # noqa: T201

    def released(self, step: int) -> None:
        """Note that training goes on while a checkpoint is still being written."""
        self._blocked[step] = self._seconds(step)

    def note(self, path: Path, step: int) -> None:
        """Say on rank 0 that a checkpoint is whole, with its bytes, its seconds, and those that training waited."""
        with contextlib.suppress(OSError):
            text, seconds = f"the checkpoint of step {step} is whole", self._seconds(step)
            blocked = {"blocking_seconds": self._blocked.pop(step)} if step in self._blocked else {}
            facts: dict[str, Any] = {"seconds": seconds, **blocked, "bytes": files.bytes_in(path)}
            events.add(self._context.directory, "save", text, step=step, node=machine.node(), **facts)
        self._begun.pop(step, None)

    def _seconds(self, step: int) -> float:
        now = time.monotonic()
        return round(now - self._begun.get(step, now), 3)

    def error(self, step: int, folder: Path, text: str) -> CheckpointError:
        """The error of a checkpoint that could not be written, with the one that is left."""
        kept = self._kept()
        intact = f"{kept} is intact" if kept is not None else "there was none before it"
        return CheckpointError(f"the checkpoint of step {step} could not be written to {folder}: {text}; {intact}")


def why(error: BaseException, folder: Path) -> tuple[bool, str]:
    """Return True if a full disk, a quota or a limit is behind an error of writing, and the reason in one line."""
    free = machine.disk_free(folder)
    if shortage.is_full(error) or (free is not None and free < _ALMOST_NOTHING):
        return True, shortage.FULL
    text = reason(error)
    return text == shortage.SHORT, text


def reason(error: BaseException) -> str:
    """The error as one line, without the stacks of every rank that torch's exception prints."""
    if isinstance(error, CheckpointException):
        error = next((inner[0] for inner in error.failures.values()), error)
    if _SHORT_WRITE in str(error) or (isinstance(error, OSError) and error.errno == errno.EFBIG):
        return shortage.SHORT
    return f"{type(error).__name__}: {error}"
