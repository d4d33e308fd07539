"""Torch's profiler for the steps of ``train.profile``: a Chrome trace per chosen rank, on a GPU with its memory."""

import contextlib
from collections.abc import Iterator

import torch
from torch import profiler

from launcher.job import events
from launcher.worker.engine import Context

FOLDER = "profile"


class Profile:
    """Records the steps in ``train.profile`` if this rank is one of those to profile."""

    def __init__(self, context: Context) -> None:
        self._context, asked = context, context.spec.train.profile
        self._steps = range(0)
        if asked is not None and context.rank in asked.ranks:
            self._steps = range(asked.start, min(asked.start + asked.steps, context.spec.steps + 1))
        self._running: profiler.profile | None = None
        self._begun = 0

    @contextlib.contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Wrap a step: start recording before the first profiled step, and write the files after the last."""
        if step not in self._steps:
            yield
            return
        if self._running is None:  # A run that resumes among the profiled steps records the rest of them.
            self._begun, cuda = step, self._context.device.type == "cuda"
            kinds = [profiler.ProfilerActivity.CPU, *([profiler.ProfilerActivity.CUDA] if cuda else [])]
            self._running = profiler.profile(activities=kinds, record_shapes=True, profile_memory=True)
            self._running.start()
        with profiler.record_function(f"step {step}"):
            yield
        if step == self._steps[-1]:
            self.end(step)

    def end(self, step: int) -> None:
        """Write what was recorded up to this step; do nothing if nothing was."""
        if self._running is None:
            return
        running, self._running = self._running, None
        running.stop()
        context, folder = self._context, self._context.directory / FOLDER
        folder.mkdir(exist_ok=True)
        name = f"{FOLDER}/rank{context.rank}.steps-{self._begun}-{step}"
        running.export_chrome_trace(str(context.directory / f"{name}.json.gz"))
        files = [f"{name}.json.gz"]
        if context.device.type == "cuda":
            files.append(f"{name}.memory.pickle")
            torch.cuda.memory._dump_snapshot(str(context.directory / files[-1]))  # type: ignore[no-untyped-call]
        text = f"rank {context.rank} recorded steps {self._begun} to {step}: {' and '.join(files)}"
        events.add(context.directory, "profile", text, step=step, rank=context.rank, files=files)
