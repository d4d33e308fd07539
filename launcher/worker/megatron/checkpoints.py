"""Megatron's own checkpoints in the run directory: found, checked against the run, old ones removed.

The launcher adds ``state.json`` to each. A full disk pauses saving as in every engine (``launcher.worker.saving``): if
Megatron's writers fail, all ranks get the error; since rank 0 alone would fail to write the small files, free space is
checked before Megatron begins.
"""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from torch.distributed.checkpoint.api import CheckpointException

from launcher.base.files import load_json, read_text, write_atomically
from launcher.saved.checkpoints import STATE, TRACKER, NoCheckpoint, find, state_content, whole_checkpoints
from launcher.worker import CheckpointError, saving
from launcher.worker.data import Batches
from launcher.worker.engine import Context

_NAME = re.compile(r"iter_(\d{7,})")
_BLOCK = 512  # Bytes per unit of ``st_blocks`` (inode(7)).


def folder_of(step: int) -> str:
    """Megatron's name for the folder of a checkpoint."""
    return f"iter_{step:07d}"


def source(context: Context) -> tuple[Path, int] | None:
    """Find the checkpoint folder and the step to resume from: the run's own newest, or else ``save.load``."""
    own = context.directory / "checkpoints"
    if (own / TRACKER).is_file():
        return own, newest(own)
    wanted = context.spec.save.load
    if wanted is None:
        return None
    try:
        found = find(wanted, run_of=lambda name: None)
    except NoCheckpoint:
        found = Path(wanted)
    named = _NAME.fullmatch(found.name)
    if named is None or not found.is_dir():
        raise CheckpointError(
            f"save.load={wanted} holds no checkpoint of backend=megatron: name a run directory of that backend or one "
            "of its checkpoints/iter_*, or export from the backend that wrote it (save.export=safetensors) and start "
            "with model.weights"
        )
    return found.parent, int(named[1])


def newest(folder: Path) -> int:
    """The step of the newest complete checkpoint, from Megatron's tracker file."""
    text = read_text(folder / TRACKER).strip()
    if not text.isdigit():
        raise CheckpointError(f"{folder / TRACKER} should name a step, but contains {text!r}")
    return int(text)


class Checkpoints:
    """The run's checkpoints; wraps Megatron's own loading and saving."""

    def __init__(self, context: Context, batches: Batches) -> None:
        self._context, self._spec, self._batches = context, context.spec, batches
        self._folder = context.directory / "checkpoints"
        self._saving = saving.Saving(context, self._kept)
        self._writing: list[int] = []

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Raise CheckpointError for a checkpoint of another model, and instead of Megatron's errors."""
        found = source(self._context)
        if found is None:
            yield
            return
        path = found[0] / folder_of(found[1])
        with contextlib.suppress(FileNotFoundError):  # Megatron-LM wrote it without the launcher.
            there = load_json(path / STATE)
            saving.fits(self._spec, there, path, self._batches.identity())
            if there.get("global_batch_size", self._spec.global_batch_size) != self._spec.global_batch_size:
                batch = there["global_batch_size"]
                raise CheckpointError(
                    f"{path} counts its position in the data in steps of {batch} sequences, which Megatron-LM cannot "
                    f"change: set train.global_batch_size={batch}"
                )
        try:
            yield
        except saving.FAILURES as error:
            earlier = [each for each in whole_checkpoints(self._folder) if each.step < found[1]][-1:]
            ways = (f" (with {each.step} in {TRACKER} the run continues from {each.path.name})" for each in earlier)
            raise CheckpointError(f"{path} cannot be read{''.join(ways)}: {saving.reason(error)}") from error

    def save(self, step: int, write: Callable[[], object]) -> None:
        """Save by Megatron's ``write`` or raise CheckpointError; :meth:`finalize` ends background ones."""
        path, every = self._folder / folder_of(step), self._spec.save_every
        last = step == self._spec.steps or every is None or step % every != 0
        if not self._saving.together(step, path, lambda: self._begin(path, step), last=last):
            return
        if self._spec.save.asynchronous:
            self._writing.append(step)
        if self._written(step, write, last=last) and self._context.rank == 0:
            if self._spec.save.asynchronous:
                self._saving.released(step)
            else:
                self._saving.note(path, step)
            for old in whole_checkpoints(self._folder)[: -self._spec.save.keep]:  # Not one that is being written.
                shutil.rmtree(old.path, ignore_errors=True)

    def finalize(self, finalize: Callable[[], object], *, last: bool) -> None:
        """Let Megatron finish its background writes; the first one that is not complete may have failed."""
        done = newest(self._folder) if self._writing and (self._folder / TRACKER).is_file() else 0
        for step in [step for step in self._writing if step <= done]:
            if self._context.rank == 0:
                self._saving.note(self._folder / folder_of(step), step)
        self._writing = [step for step in self._writing if step > done]
        if not self._writing:
            finalize()
        elif not self._written(self._writing[0], finalize, last=last):
            self._writing.pop(0)

    def _written(self, step: int, write: Callable[[], object], *, last: bool) -> bool:
        """Let Megatron write; False if its writers found the disk full, which all ranks learn together."""
        path = self._folder / folder_of(step)
        before = self._tracked()
        try:
            write()
        except CheckpointException as error:
            return self._saving.agree(step, path, error, last=last)
        except Exception as error:
            if before is not None and self._tracked() != before:  # Truncated while it was rewritten.
                (self._folder / TRACKER).write_text(before)
            raise self._saving.error(step, self._folder, saving.why(error, self._folder)[1]) from error
        return True

    def _tracked(self) -> str | None:
        path = self._folder / TRACKER
        return read_text(path) if self._context.rank == 0 and path.is_file() else None

    def _begin(self, path: Path, step: int) -> None:
        if self._context.rank != 0:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        kept = self._kept()
        there = (self._folder / kept).rglob("*") if kept is not None else ()
        if shutil.disk_usage(self._folder).free < sum(each.stat().st_blocks * _BLOCK for each in there):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path.mkdir(exist_ok=True)
        write_atomically(path / STATE, state_content(self._spec, step, corpus=self._batches.identity()))

    def _kept(self) -> str | None:
        return folder_of(newest(self._folder)) if (self._folder / TRACKER).is_file() else None
