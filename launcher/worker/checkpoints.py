"""Checkpoint folders: written whole or not at all, the newest found again, the oldest removed.

``checkpoints/step-00000100/`` holds the engine's files and ``state.json``: the step, which is also the position in the
data, and the sizes of the model. The engine writes into ``step-00000100.partial``; once every rank's part is on disk,
rank 0 renames the folder, and only then removes those beyond ``save.keep``. With ``save.async`` the rename waits until
all ranks have agreed, beside a later step, that none is still writing. A kill at any moment so leaves at least the
checkpoint before.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from launcher.spec import RunSpec
from launcher.worker import files, process
from launcher.worker.engine import Context, Engine, PendingSave
from launcher.worker.errors import CheckpointError

STATE = "state.json"
_NAME = re.compile(r"step-(\d{8,})")
_NOT_SIZES = frozenset(("name", "source", "weights", "attention", "dropout", "initializer_range", "trust_remote_code"))
"""Fields of the model that may differ between the run that saved and the run that loads."""


FAILURES = (Exception, CheckpointException)
"""Exceptions of an engine that reads or writes; torch's ``CheckpointException`` is not an ``Exception``."""


_ALMOST_NOTHING = 2**20
"""Bytes; below this a disk is full, whatever the error says."""

_SHORT_WRITE = "unexpected pos"
"""Words of torch's zip writer when a file took less than was written, in place of the system's own error."""


class Checkpoints:
    """The checkpoints of one run; every method is called by all ranks together."""

    def __init__(self, context: Context) -> None:
        self._context, self._spec = context, context.spec
        self._folder = context.directory / "checkpoints"
        self._pending: tuple[int, Path, PendingSave] | None = None
        self.newest = 0

    @property
    def writing(self) -> bool:
        """True while this rank's part of a background write is not on disk yet."""
        return self._pending is not None and not self._pending[2].done()

    def restore(self, engine: Engine) -> int:
        """Load this run's newest checkpoint, or else ``save.load``; the step it is from, 0 without one.

        Raises:
            CheckpointError: ``save.load`` holds no checkpoint, or one of another model.
        """
        source = newest(self._folder)
        if source is None and self._spec.save.load is not None:
            source = find(Path(self._spec.save.load))
        if source is None:
            return 0
        state = json.loads((source / STATE).read_text())
        fits(self._spec, state, source)
        try:
            engine.load(source)
        except FAILURES as error:
            raise CheckpointError(f"{source} cannot be read: {reason(error)}") from error
        self.newest = int(state["step"])
        return self.newest

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
                (partial / STATE).write_text(json.dumps(state(self._spec, step)))
            pending = engine.save(partial)
        except FAILURES as error:
            raise self._failed(step, error) from error
        if pending is None:
            self._finish(step, partial)
        else:
            self._pending = (step, partial, pending)

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
    found = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name) and (path / STATE).is_file()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def newest(folder: Path) -> Path | None:
    """The last whole checkpoint of a folder."""
    found = complete(folder)
    return found[-1] if found else None


def find(path: Path) -> Path:
    """The checkpoint that ``save.load`` means: a checkpoint itself, or the newest of a run directory.

    Raises:
        CheckpointError: There is none.
    """
    if (path / STATE).is_file():
        return path
    found = newest(path / "checkpoints") or newest(path)
    if found is None:
        raise CheckpointError(
            f"save.load={path} holds no whole checkpoint: name a run directory or one of its checkpoints/step-*"
        )
    return found


def fits(spec: RunSpec, state: dict[str, Any], source: Path) -> None:
    """Check that a checkpoint is of the model and adapter that the run has, and has steps left to do.

    Raises:
        CheckpointError: With the sizes that differ.
    """
    here, there = _sizes(spec), state["model"]
    differing = [f"{key} is {there.get(key)} there and {here[key]} here" for key in here if there.get(key) != here[key]]
    if differing:
        raise CheckpointError(f"{source} is a checkpoint of another model: {', '.join(differing)}")


def _sizes(spec: RunSpec) -> dict[str, Any]:
    sizes = {f"model.{key}": value for key, value in asdict(spec.model).items() if key not in _NOT_SIZES}
    if spec.adapter.name != "none":
        sizes |= {"adapter.rank": spec.adapter.rank, "adapter.targets": list(spec.adapter.targets)}
    return {**sizes, "adapter.name": spec.adapter.name, "optimizer.name": spec.optimizer.name}


def state(spec: RunSpec, step: int) -> dict[str, Any]:
    """Content of ``state.json``: the step, the batch that makes it a position in the data, the model's sizes."""
    return {
        "schema": 1,
        "step": step,
        "spec_hash": spec.hash,
        "global_batch_size": spec.global_batch_size,
        "sequence_length": spec.sequence_length,
        "seed": spec.train.seed,
        "backend": spec.backend.name,
        "model": _sizes(spec),
    }


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
