"""Token ids of a run's data made in this process, with a progress bar; Ctrl-C leaves nothing half."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.actions.asking import folder
from launcher.base import terminal
from launcher.base.terminal import say
from launcher.base.units import count
from launcher.data import token_folder
from launcher.data.token_folder import TokenFolder
from launcher.spec import RunSpec

_MOMENT_S = 1.0


def root(spec: RunSpec) -> Path:
    """The cache that the run's token ids go to."""
    return token_folder.root(spec, {**os.environ, **spec.cluster.environment}, folder(), None)


def make(spec: RunSpec, *, quiet: bool) -> tuple[TokenFolder, bool]:
    """The token ids of a run's data, and whether they were made just now.

    Raises:
        ConfigErrors: There is no folder for them that a job's nodes are known to share.
        DataError: The data cannot be used.
        SubmitError: The folder cannot be written.
    """
    from launcher.data.prepare import Progress, prepared  # Late, because numpy takes 0.1 s.

    place, made = root(spec), False
    with _bar(quiet) as bar:

        def tell(progress: Progress) -> None:
            nonlocal made
            made = True
            text = f"{progress.text_bytes / 1e6:,.0f} MB of text, " if progress.text_bytes else ""
            bar(progress.text_bytes, f"{text}{count(progress.tokens)} tokens")

        waits = f"launch: another process makes the same token ids in {place}; waiting for it"
        found = prepared(spec.data, place, tell=tell, waits=lambda: say(waits))
    return found, made


@contextlib.contextmanager
def _bar(quiet: bool) -> Iterator[Callable[[int, str], None]]:
    """A function that shows bytes of text and words beside them, once it has taken longer than a moment."""
    if quiet:
        yield lambda done, words: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TransferSpeedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TransferSpeedColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(file=terminal.raw(sys.stderr)), transient=True)
    task = progress.add_task("token ids", total=None)
    began = time.monotonic()

    def show(done: int, words: str) -> None:
        if not progress.live.is_started and time.monotonic() - began > _MOMENT_S:
            progress.start()
        progress.update(task, completed=done, description=f"token ids: {words}")

    try:
        yield show
    finally:
        progress.stop()
