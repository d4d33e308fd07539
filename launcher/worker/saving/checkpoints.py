"""Checkpoint folders: written whole or not at all, the newest found again, the oldest removed.

The engine writes into ``step-00000100.partial``; once every rank's part is on disk, rank 0 renames the folder, and only
then removes those beyond ``save.keep``. With ``save.async`` the rename waits until all ranks have agreed, beside a
later step, that none is still writing. A full disk pauses saving; only the last checkpoint of a run must succeed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from launcher.base.files import load_json
from launcher.saved import checkpoints as content
from launcher.saved.checkpoints import STATE, NoCheckpoint, worker_checkpoints
from launcher.saved.checkpoints import find as find_saved
from launcher.spec import RunSpec
from launcher.worker import CheckpointError, TrainingError, files, spikes
from launcher.worker.data import Batches
from launcher.worker.data.order import Position
from launcher.worker.engine import Context, Engine, PendingSave
from launcher.worker.saving import FAILURES, Saving, reason


class Checkpoints:
    """The checkpoints of one run; every method is called by all ranks together."""

    def __init__(self, context: Context, batches: Batches) -> None:
        self._context, self._spec, self._batches = context, context.spec, batches
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

    def restore(self, engine: Engine) -> Position:
        """Load the run's newest checkpoint, or else ``save.load``; return its place in the data, or the start."""
        source = newest(self._folder)
        if source is None and self._spec.save.load is not None:
            source = find(self._spec.save.load)
        if source is None:
            return Position()
        state = load_json(source / STATE)
        fits(self._spec, state, source, self._batches.identity())
        try:
            engine.load(source)
        except FAILURES as error:
            raise CheckpointError(f"{source} cannot be read: {reason(error)}") from error
        self.newest = int(state["step"])
        samples = spikes.samples_behind(self._context.directory, self.newest, int(state["samples"]))
        self._start = Position(step=self.newest, samples=samples)
        return self._start

    def go_back(self, engine: Engine, spike: spikes.Spike) -> Position:
        """Load the newest checkpoint once more, and go on behind the samples that the jump has seen, if it may."""
        self.wait()
        directory, to = self._context.directory, self.newest or None
        why = spikes.reason_against_rollback(self._spec, directory, to)
        if why is not None:
            raise TrainingError(f"{spike}; {why}")
        dist.barrier()  # All have read the file of before.
        if self._context.rank == 0:
            spikes.note(directory, spike, to=to, samples=self._start.after(spike.step, self._spec.global_batch_size))
        dist.barrier()
        return self.restore(engine)

    def save(self, engine: Engine, step: int, *, last: bool = False) -> None:
        """Write a checkpoint; with ``save.async`` :meth:`settle` or :meth:`wait` names it; else CheckpointError."""
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
            state = content.state_content(self._spec, step, samples=samples, corpus=self._batches.identity())
            (partial / STATE).write_text(json.dumps(state))

    def settle(self, *, still_writing: bool) -> None:
        """Give a background write its name, once all ranks have agreed that none is still writing."""
        if self._pending is not None and not still_writing:
            self.wait()

    def wait(self, *, last: bool = False) -> None:
        """Wait for a background write and give it its name; ``last`` as of :meth:`save`."""
        if self._pending is None:
            return
        step, partial, pending = self._pending
        self._pending = None
        if self._saving.together(step, partial, pending.result, last=last):
            self._finish(step, partial, last=last)

    def _finish(self, step: int, partial: Path, *, last: bool) -> None:
        """Give the folder its name, which says that every rank's part is there."""
        if self._saving.together(step, partial, lambda: self._named(step, partial), last=last):
            self.newest = step

    def _named(self, step: int, partial: Path) -> None:
        if self._context.rank == 0:
            files.finish_directory(partial, partial.with_suffix(""))
            self._saving.note(partial.with_suffix(""), step)
            content.end_pause(self._context.directory)
            for old in worker_checkpoints(self._folder)[: -self._spec.save.keep]:
                shutil.rmtree(old.path, ignore_errors=True)


def newest(folder: Path) -> Path | None:
    """The last whole checkpoint of a folder; a ``.partial`` that a kill left behind is none."""
    found = worker_checkpoints(folder)
    return found[-1].path if found else None


def find(word: str) -> Path:
    """The checkpoint of ``save.load``, or a :class:`CheckpointError`; names of runs mean nothing inside the job."""
    try:
        return find_saved(word, run_of=lambda name: None)
    except NoCheckpoint as error:
        raise CheckpointError(f"save.load={word} {error}") from None


def fits(spec: RunSpec, state: Mapping[str, Any], source: Path, corpus: Mapping[str, Any]) -> None:
    """Raise a :class:`CheckpointError` for a checkpoint of another model, adapter, samples or order of these."""
    there, here = state["model"], content.sizes(spec)
    differing = [f"{key} is {there.get(key)} there and {here[key]} here" for key in here if there.get(key) != here[key]]
    if differing:
        raise CheckpointError(f"{source} is a checkpoint of another model: {', '.join(differing)}")
    found = [f"{error.where}: {error.rule} ({' '.join(error.way_out)})" for error in content.obstacles(spec, state)]
    other = content.other_samples(spec, state, corpus)
    if found or other is not None:
        raise CheckpointError(f"{source} {other or ''}{'; '.join(found)}")
