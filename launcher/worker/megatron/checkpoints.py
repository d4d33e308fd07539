"""Megatron's own checkpoints in the run directory: found, checked against the run, thinned out.

``checkpoints/iter_0000100/`` is what Megatron-LM writes and what its own tools read, and the file
``latest_checkpointed_iteration.txt`` beside it names the newest whole one. The launcher adds ``state.json`` to each:
the sizes of the model.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from launcher.saved import state
from launcher.saved.find import STATE, TRACKER, NoCheckpoint, find
from launcher.worker import checkpoints, files
from launcher.worker.data import Batches
from launcher.worker.engine import Context
from launcher.worker.errors import CheckpointError

_NAME = re.compile(r"iter_(\d{7,})")


def folder_of(step: int) -> str:
    """Megatron's name of a checkpoint's folder."""
    return f"iter_{step:07d}"


def source(context: Context) -> tuple[Path, int] | None:
    """The folder of checkpoints and the step that the run goes on from: its own newest, or else ``save.load``.

    Raises:
        CheckpointError: ``save.load`` holds no checkpoint of Megatron's.
    """
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
            f"save.load={wanted} holds no checkpoint of backend=megatron: name a run directory of it or one of its "
            "checkpoints/iter_*, or export where it was trained (save.export=safetensors) and start here with "
            "model.weights"
        )
    return found.parent, int(named[1])


def newest(folder: Path) -> int:
    """The step of the newest whole checkpoint.

    Raises:
        CheckpointError: Megatron's tracker file is damaged.
    """
    text = (folder / TRACKER).read_text().strip()
    if not text.isdigit():
        raise CheckpointError(f"{folder / TRACKER} does not name a step but {text!r}")
    return int(text)


class Checkpoints:
    """The run's checkpoints, around Megatron's own reading and writing."""

    def __init__(self, context: Context, batches: Batches) -> None:
        self._context, self._spec, self._batches = context, context.spec, batches
        self._folder = context.directory / "checkpoints"

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Refuse a checkpoint of another model, and name one that cannot be read.

        Raises:
            CheckpointError: In place of Megatron's errors.
        """
        found = source(self._context)
        if found is None:
            yield
            return
        path = found[0] / folder_of(found[1])
        with contextlib.suppress(FileNotFoundError):  # One that Megatron-LM wrote without the launcher.
            there = json.loads((path / STATE).read_text())
            checkpoints.fits(self._spec, there, path, self._batches.identity())
            if there.get("global_batch_size", self._spec.global_batch_size) != self._spec.global_batch_size:
                batch = there["global_batch_size"]
                raise CheckpointError(
                    f"{path} counts its place in the data in steps of {batch} sequences, which Megatron-LM cannot "
                    f"change: train.global_batch_size={batch}"
                )
        try:
            yield
        except checkpoints.FAILURES as error:
            raise CheckpointError(f"{path} cannot be read: {checkpoints.reason(error)}") from error

    @contextlib.contextmanager
    def saving(self, step: int) -> Iterator[None]:
        """Note the sizes of the model in the checkpoint and keep as many as the run says.

        Raises:
            CheckpointError: It cannot be written; those before it are intact.
        """
        path = self._folder / folder_of(step)
        try:
            if self._context.rank == 0:
                path.mkdir(parents=True, exist_ok=True)
                content = state.of(self._spec, step, corpus=self._batches.identity())
                files.write_json(path / STATE, content)
            yield
        except checkpoints.FAILURES as error:
            raise checkpoints.failed(step, self._folder, error, self._kept()) from error
        if self._context.rank == 0:
            self._remove_old()

    def _kept(self) -> str | None:
        return folder_of(newest(self._folder)) if (self._folder / TRACKER).is_file() else None

    def _remove_old(self) -> None:
        """Megatron writes the tracker last, so a checkpoint that is still being written is newer than it."""
        if not (self._folder / TRACKER).is_file():
            return
        last = newest(self._folder)
        steps = sorted(int(match[1]) for path in self._folder.iterdir() if (match := _NAME.fullmatch(path.name)))
        for step in [step for step in steps if step <= last][: -self._spec.save.keep]:
            shutil.rmtree(self._folder / folder_of(step), ignore_errors=True)
