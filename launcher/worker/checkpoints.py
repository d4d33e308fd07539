"""Checkpoint folders: written whole or not at all, the newest found again, the oldest removed.

``checkpoints/step-00000100/`` holds the engine's files and ``state.json`` (``launcher.saved.state``): the step, the
position in the data, and the sizes of the model. The engine writes into ``step-00000100.partial``; once every rank's
part is on disk, rank 0 renames the folder, and only then removes those beyond ``save.keep``. With ``save.async`` the
rename waits until all ranks have agreed, beside a later step, that none is still writing. A kill at any moment so
leaves at least the checkpoint before.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from launcher.saved import state as content
from launcher.saved.find import STATE, NoCheckpoint, steps_of_the_worker
from launcher.saved.find import find as find_saved
from launcher.spec import RunSpec
from launcher.worker import files, process, spikes
from launcher.worker.data import Batches, Position
from launcher.worker.engine import Context, Engine, PendingSave
from launcher.worker.errors import CheckpointError, TrainingError

FAILURES = (Exception, CheckpointException)
"""Exceptions of an engine that reads or writes; torch's ``CheckpointException`` is not an ``Exception``."""


_ALMOST_NOTHING = 2**20
"""Bytes; below this a disk is full, whatever the error says."""

_SHORT_WRITE = "unexpected pos"
"""Words of torch's zip writer when a file took less than was written, in place of the system's own error."""


class Checkpoints:
    """The checkpoints of one run; every method is called by all ranks together."""

    def __init__(self, context: Context, batches: Batches) -> None:
        self._context, self._spec, self._batches = context, context.spec, batches
        self._folder = context.directory / "checkpoints"
        self._pending: tuple[int, Path, PendingSave] | None = None
        self._start, self.newest = Position(), 0

    @property
    def writing(self) -> bool:
        """True while this rank's part of a background write is not on disk yet."""
        return self._pending is not None and not self._pending[2].done()

    def restore(self, engine: Engine) -> Position:
        """Load this run's newest checkpoint, or else ``save.load``; where it is in the data, the start without one.

        Raises:
            CheckpointError: ``save.load`` holds no checkpoint, or one of another model or of other data.
        """
        source = newest(self._folder)
        if source is None and self._spec.save.load is not None:
            source = find(self._spec.save.load)
        if source is None:
            return Position()
        state = json.loads((source / STATE).read_text())
        fits(self._spec, state, source, self._batches.identity())
        try:
            engine.load(source)
        except FAILURES as error:
            raise CheckpointError(f"{source} cannot be read: {reason(error)}") from error
        self.newest = int(state["step"])
        samples = spikes.samples_behind(self._context.directory, self.newest, content.samples(state))
        self._start = Position(step=self.newest, samples=samples)
        return self._start

    def go_back(self, engine: Engine, spike: spikes.Spike) -> Position:
        """Load the newest checkpoint once more, and go on behind the samples that the jump has seen.

        Raises:
            TrainingError: There is none, or the run went back to it too often.
        """
        self.wait()
        directory, to = self._context.directory, self.newest or None
        why = spikes.refused(self._spec, directory, to)
        if why is not None:
            raise TrainingError(f"{spike}; {why}")
        dist.barrier()  # All have read the file of before.
        if self._context.rank == 0:
            samples = self._start.after(spike.step, self._spec.global_batch_size)
            spikes.note(directory, spike, to=to, samples=samples)
        dist.barrier()
        return self.restore(engine)

    def save(self, engine: Engine, step: int) -> None:
        """Write a checkpoint; with ``save.async`` it gets its name later, in :meth:`settle` or :meth:`wait`.

        Raises:
            CheckpointError: It cannot be written; the checkpoints before it are intact.
        """
        self.wait()
        final = self._folder / f"step-{step:08d}"
        try:
            partial = process.begin_directory(self._context, final)
            if self._context.rank == 0:
                (partial / STATE).write_text(json.dumps(self._state(step)))
            pending = engine.save(partial)
        except FAILURES as error:
            raise self._failed(step, error) from error
        if pending is None:
            self._finish(step, partial)
        else:
            self._pending = (step, partial, pending)

    def _state(self, step: int) -> dict[str, Any]:
        samples = self._start.after(step, self._spec.global_batch_size)
        return content.of(self._spec, step, samples=samples, corpus=self._batches.identity())

    def settle(self, *, still_writing: bool) -> None:
        """Give a background write its name, once all ranks have agreed that none is still writing."""
        if self._pending is not None and not still_writing:
            self.wait()

    def wait(self) -> None:
        """Wait for a background write and give it its name."""
        if self._pending is None:
            return
        step, partial, pending = self._pending
        self._pending = None
        try:
            pending.result()
        except FAILURES as error:
            raise self._failed(step, error) from error
        self._finish(step, partial)

    def _finish(self, step: int, partial: Path) -> None:
        dist.barrier()  # The name says that every rank's part is there.
        if self._context.rank == 0:
            try:
                files.finish_directory(partial, partial.with_suffix(""))
            except OSError as error:
                raise self._failed(step, error) from error
            self._remove_old()
        self.newest = step
        dist.barrier()

    def _remove_old(self) -> None:
        for path in complete(self._folder)[: -self._spec.save.keep]:
            shutil.rmtree(path, ignore_errors=True)

    def _failed(self, step: int, error: BaseException) -> CheckpointError:
        shutil.rmtree(self._folder / f"step-{step:08d}.partial", ignore_errors=True)
        kept = newest(self._folder)
        return failed(step, self._folder, error, kept.name if kept is not None else None)


def failed(step: int, folder: Path, error: BaseException, kept: str | None) -> CheckpointError:
    """The error of a checkpoint that could not be written, with the one that is left.

    Args:
        step: Of the checkpoint.
        folder: Where it was to be.
        error: The writer's exception.
        kept: The name of the newest one before it.
    """
    full = is_full(error) or shutil.disk_usage(folder).free < _ALMOST_NOTHING
    intact = f"{kept} is intact" if kept is not None else "there was none before it"
    why = "no space left on the disk" if full else reason(error)
    return CheckpointError(f"the checkpoint of step {step} could not be written to {folder}: {why}; {intact}")


def complete(folder: Path) -> list[Path]:
    """The whole checkpoints of a folder, oldest first; a ``.partial`` that a kill left behind is not among them."""
    return [each.path for each in steps_of_the_worker(folder)]


def newest(folder: Path) -> Path | None:
    """The last whole checkpoint of a folder."""
    found = complete(folder)
    return found[-1] if found else None


def find(word: str) -> Path:
    """The checkpoint that ``save.load`` means, where planning did not see it: names of runs mean nothing here.

    Raises:
        CheckpointError: There is none.
    """
    try:
        return find_saved(word, run_of=lambda name: None)
    except NoCheckpoint as error:
        raise CheckpointError(f"save.load={word} {error}") from None


def fits(spec: RunSpec, state: Mapping[str, Any], source: Path, corpus: Mapping[str, Any]) -> None:
    """Check that a run can go on from a checkpoint: same model and adapter, same samples in the same order.

    Raises:
        CheckpointError: With what differs.
    """
    there, here = state["model"], content.sizes(spec)
    differing = [f"{key} is {there.get(key)} there and {here[key]} here" for key in here if there.get(key) != here[key]]
    if differing:
        raise CheckpointError(f"{source} is a checkpoint of another model: {', '.join(differing)}")
    found = [f"{error.where}: {error.rule} ({' '.join(error.way_out)})" for error in content.obstacles(spec, state)]
    other = content.other_samples(spec, state, corpus)
    if found or other is not None:
        raise CheckpointError(f"{source} {other or ''}{'; '.join(found)}")


def reason(error: BaseException) -> str:
    """The error as one line, without the stacks of every rank that torch's exception prints."""
    if isinstance(error, CheckpointException):
        error = next((inner[0] for inner in error.failures.values()), error)
    if _SHORT_WRITE in str(error) or (isinstance(error, OSError) and error.errno == errno.EFBIG):
        return "a file took less than was written to it: the disk is full, or a quota or a limit is reached"
    return f"{type(error).__name__}: {error}"


def is_full(error: BaseException) -> bool:
    """True if a full disk is behind an error; checkpoint writers wrap it, and each rank's error, in their own."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    failures = getattr(error, "failures", None)
    inner = [item[0] for item in failures.values()] if isinstance(failures, dict) else []
    inner += [cause for cause in (error.__cause__, error.__context__) if cause is not None]
    return "No space left on device" in str(error) or any(is_full(cause) for cause in inner)
