"""Checkpoint folders: written completely or not at all, the newest loaded, the oldest removed; all ranks agree on each.

The engine writes to ``step-00000100.partial``. Once every rank's part is on disk, rank 0 renames the folder, and only
then removes checkpoints beyond ``save.keep``. With ``save.async`` the rename waits until all ranks have agreed, during
a later step, that none is still writing.

A rank that cannot write must not leave the others waiting in a collective that it never reaches: each part of a save
ends with an agreement to continue, to pause saving while the disk is full, or to fail. Only the last checkpoint of a
run must succeed.
"""

import contextlib
import errno
import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from launcher.base import files, machine
from launcher.base.files import JsonObject, load_json
from launcher.job import events
from launcher.saved import checkpoints as content
from launcher.saved.checkpoints import STATE, NoCheckpoint, end_pause, note_pause, worker_checkpoints
from launcher.saved.checkpoints import find as find_saved
from launcher.spec import RunSpec
from launcher.worker import CheckpointError, TrainingError, out_of_memory, spikes
from launcher.worker import files as worker_files
from launcher.worker.data.order import Position
from launcher.worker.engine import Context, PendingSave, Stored

FAILURES = (Exception, CheckpointException)
"""Exceptions of an engine's reads and writes; torch's ``CheckpointException`` is not an ``Exception``."""

_ALMOST_NOTHING = 2**20  # Bytes; a disk with less free counts as full, whatever the error says.
_SHORT_WRITE = "unexpected pos"  # From torch's zip writer, if a file took fewer bytes than were written to it.


class Saving:
    """Makes all ranks agree on the outcome of each part of a save."""

    def __init__(self, context: Context, kept: Callable[[], str | None]) -> None:
        """Start unpaused; ``kept`` returns the name of the newest complete checkpoint."""
        self._context, self._kept = context, kept
        self._begun: dict[int, float] = {}
        self._blocked: dict[int, float] = {}
        if context.rank == 0:
            end_pause(context.directory)

    def together(self, step: int, folder: Path, act: Callable[[], object], *, last: bool) -> bool:
        """Do this rank's part of a save; True if all ranks succeeded, False if saving is paused.

        A failure removes ``folder`` and raises CheckpointError on all ranks; a full disk only at the ``last`` save.
        """
        self._begun.setdefault(step, time.monotonic())
        try:
            act()
        except FAILURES as error:
            return self.agree(step, folder, error, last=last)
        return self.agree(step, folder, None, last=last)

    def agree(self, step: int, folder: Path, failed: BaseException | None, *, last: bool) -> bool:
        """Tell all ranks whether this one failed, and return or raise as :meth:`together` does."""
        mine = None if failed is None else why(failed, folder.parent)
        found: list[tuple[bool, str] | None] = [mine] * self._context.world
        if dist.is_initialized():
            dist.all_gather_object(found, mine)
        troubles = [trouble for trouble in found if trouble is not None]
        if not troubles:
            return True
        self._begun.pop(step, None)  # The save may be tried again.
        if self._context.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        # Prefer a full disk as the reason: a writer that only sees another rank's failure does not know the cause.
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
        print(f"launch: {error}; training continues", file=sys.stderr, flush=True)  # noqa: T201

    def released(self, step: int) -> None:
        """Record that training continues while a checkpoint is still being written."""
        self._blocked[step] = self._seconds(step)

    def note(self, path: Path, step: int) -> None:
        """Report on rank 0 that a checkpoint is complete: its bytes, its seconds, and how long training waited."""
        with contextlib.suppress(OSError):
            text, seconds = f"the checkpoint of step {step} is complete", self._seconds(step)
            blocked = {"blocking_seconds": self._blocked.pop(step)} if step in self._blocked else {}
            facts: dict[str, Any] = {"seconds": seconds, **blocked, "bytes": files.bytes_in(path)}
            events.add(self._context.directory, "save", text, step=step, node=machine.node(), **facts)
        self._begun.pop(step, None)

    def _seconds(self, step: int) -> float:
        now = time.monotonic()
        return round(now - self._begun.get(step, now), 3)

    def error(self, step: int, folder: Path, text: str) -> CheckpointError:
        """The error for a checkpoint that could not be written; it names the newest one that is left."""
        kept = self._kept()
        intact = f"{kept} is intact" if kept is not None else "there was none before it"
        return CheckpointError(f"the checkpoint of step {step} could not be written to {folder}: {text}; {intact}")


def why(error: BaseException, folder: Path) -> tuple[bool, str]:
    """Return whether a full disk, a quota or a limit caused a write error, and the reason in one line."""
    free = machine.disk_free(folder)
    if out_of_memory.is_full(error) or (free is not None and free < _ALMOST_NOTHING):
        return True, out_of_memory.FULL
    text = reason(error)
    return text == out_of_memory.SHORT, text


def reason(error: BaseException) -> str:
    """The error in one line, without the stacks of every rank that torch's exception prints."""
    if isinstance(error, CheckpointException):
        error = next((inner[0] for inner in error.failures.values()), error)
    if _SHORT_WRITE in str(error) or (isinstance(error, OSError) and error.errno == errno.EFBIG):
        return out_of_memory.SHORT
    return f"{type(error).__name__}: {error}".removesuffix(": ")


class Checkpoints:
    """The checkpoints of one run; every method is called by all ranks together."""

    def __init__(self, context: Context, identity: Callable[[], JsonObject]) -> None:
        """Start with none written; ``identity`` returns that of the samples (:meth:`Batches.identity`)."""
        self._context, self._spec, self._identity = context, context.spec, identity
        self._folder = context.directory / "checkpoints"
        self._pending: tuple[int, Path, PendingSave] | None = None
        self._start, self.newest = Position(), 0
        self._saving = Saving(context, self._newest_name)

    def _newest_name(self) -> str | None:
        path = newest(self._folder)
        return None if path is None else path.name

    @property
    def writing(self) -> bool:
        """True while this rank's part of a background write is not on disk yet."""
        return self._pending is not None and not self._pending[2].done()

    def restore(self, engine: Stored) -> Position:
        """Load the run's newest checkpoint, or else ``save.load``; return its position in the data, or the start."""
        source = newest(self._folder) or (None if self._spec.save.load is None else find(self._spec.save.load))
        if source is None:
            return Position()
        state = load_json(source / STATE)
        fits(self._spec, state, source, self._identity())
        try:
            engine.load(source)
        except FAILURES as error:
            earlier = [found.path.name for found in worker_checkpoints(self._folder)[-2:-1]] or ["the start"]
            way = f" (without it the run continues from {earlier[0]})" if source.parent == self._folder else ""
            raise CheckpointError(f"{source} cannot be read{way}: {reason(error)}") from error
        self.newest = int(state["step"])
        samples = spikes.samples_behind(self._context.directory, self.newest, int(state["samples"]))
        self._start = Position(step=self.newest, samples=samples)
        return self._start

    def go_back(self, engine: Stored, spike: spikes.Spike) -> Position:
        """Reload the newest checkpoint and skip the samples up to the spike; TrainingError if that is not allowed."""
        self.wait()
        directory, to = self._context.directory, self.newest or None
        why = spikes.reason_against_rollback(self._spec, directory, to)
        if why is not None:
            raise TrainingError(f"{spike}; {why}")
        dist.barrier()  # All ranks have read the file before rank 0 writes it.
        if self._context.rank == 0:
            spikes.record_rollback(
                directory, spike, to=to, samples=self._start.after(spike.step, self._spec.global_batch_size)
            )
        dist.barrier()
        return self.restore(engine)

    def save(self, engine: Stored, step: int, *, last: bool = False) -> None:
        """Write a checkpoint or raise CheckpointError; with ``save.async`` :meth:`settle` or :meth:`wait` ends it."""
        self.wait()
        partial = self._folder / f"step-{step:08d}.partial"
        pending: list[PendingSave | None] = []
        acts = (lambda: self._begin(partial, step)), (lambda: pending.append(engine.save(partial)))
        if not all(self._saving.together(step, partial, act, last=last) for act in acts):
            return
        if pending[0] is None:
            self._finish(step, partial, last=last)
        else:
            self._pending = (step, partial, pending[0])
            self._saving.released(step)

    def _begin(self, partial: Path, step: int) -> None:
        if self._context.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            samples = self._start.after(step, self._spec.global_batch_size)
            state = content.state_content(self._spec, step, samples=samples, corpus=self._identity())
            (partial / STATE).write_text(json.dumps(state))

    def settle(self, *, still_writing: bool) -> None:
        """Complete a background write, once all ranks have agreed that none is still writing."""
        if self._pending is not None and not still_writing:
            self.wait()

    def wait(self, *, last: bool = False) -> None:
        """Wait for a background write and complete it; ``last`` as in :meth:`save`."""
        if self._pending is None:
            return
        step, partial, pending = self._pending
        self._pending = None
        if self._saving.together(step, partial, pending.result, last=last):
            self._finish(step, partial, last=last)

    def _finish(self, step: int, partial: Path, *, last: bool) -> None:
        if self._saving.together(step, partial, lambda: self._complete(step, partial), last=last):
            self.newest = step

    def _complete(self, step: int, partial: Path) -> None:
        if self._context.rank == 0:
            worker_files.finish_directory(partial, partial.with_suffix(""))
            self._saving.note(partial.with_suffix(""), step)
            content.end_pause(self._context.directory)
            for old in worker_checkpoints(self._folder)[: -self._spec.save.keep]:
                shutil.rmtree(old.path, ignore_errors=True)


def newest(folder: Path) -> Path | None:
    """The newest complete checkpoint in a folder; a ``.partial`` that a kill left behind does not count."""
    found = worker_checkpoints(folder)
    return found[-1].path if found else None


def find(word: str) -> Path:
    """The checkpoint that ``save.load`` names, or CheckpointError; run names are not resolved inside the job."""
    try:
        return find_saved(word, run_of=lambda name: None)
    except NoCheckpoint as error:
        raise CheckpointError(f"save.load={word} {error}") from None


def fits(spec: RunSpec, state: Mapping[str, Any], source: Path, corpus: Mapping[str, Any]) -> None:
    """Raise CheckpointError for a checkpoint of another model or adapter, other samples, or another sample order."""
    there, here = state["model"], content.sizes(spec)
    keys = [key for key in here if there.get(key) != here[key]]
    if keys:
        differing = ", ".join(f"{key} is {there.get(key)} in it and {here[key]} in this run" for key in keys)
        raise CheckpointError(f"{source} is a checkpoint of another model: {differing}")
    found = [f"{error.where}: {error.rule} ({' '.join(error.way_out)})" for error in content.obstacles(spec, state)]
    other = content.other_samples(spec, state, corpus)
    if found or other is not None:
        raise CheckpointError(f"{source} {other or ''}{'; '.join(found)}")
