"""A sign of life on stderr for what takes longer than a second, where that is a terminal and somebody looks at it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from threading import Timer

from launcher.commands._common import is_heard_on_stderr
from launcher.text import terminal

AFTER_S = 1.0
"""Seconds without a word after which a person begins to wonder (Nielsen, Usability Engineering, 1993, chapter 5)."""


@contextlib.contextmanager
def sign(text: str) -> Iterator[None]:
    """A line with what is waited for and for how long, shown until the block ends if that takes longer than a second.

    Args:
        text: What is waited for.
    """
    stream = terminal.raw(sys.stderr)
    if not is_heard_on_stderr() or not stream.isatty():
        yield
        return
    shown = contextlib.ExitStack()

    def show() -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        bar = Progress(*columns, console=Console(file=stream), transient=True)
        bar.add_task(text, total=None)
        shown.enter_context(bar)

    timer = Timer(AFTER_S, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # It may be at it just now.
        shown.close()
