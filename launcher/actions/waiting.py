"""A progress line on stderr for work that takes longer than a second, if stderr is a terminal."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from threading import Timer
from typing import TYPE_CHECKING, TextIO

from launcher.backends import Judgement
from launcher.base import terminal
from launcher.base.terminal import is_heard_on_stderr
from launcher.preflight import assess
from launcher.spec import RunSpec

if TYPE_CHECKING:
    from rich.progress import Progress

type Native = Callable[[RunSpec], Judgement]

CHECKING = "checking the run"
AFTER_S = 1.0
"""Seconds of silence after which a person begins to wonder (Nielsen, Usability Engineering, 1993, chapter 5)."""


class _Sign:
    def __init__(self, text: str, stream: TextIO) -> None:
        self._text, self._stream = text, stream
        self._bar: Progress | None = None
        self.shown = contextlib.ExitStack()

    def say(self, text: str) -> None:
        self._text, bar = text, self._bar
        if bar is not None:
            bar.update(bar.task_ids[0], description=text, refresh=True)

    def show(self) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        bar = Progress(*columns, console=Console(file=self._stream), transient=True)
        bar.add_task(self._text, total=None)
        self.shown.enter_context(bar)
        self._bar = bar
        self.say(self._text)  # The text may have changed meanwhile.


@contextlib.contextmanager
def elapsed(text: str) -> Iterator[Callable[[str], None]]:
    """Show what a block does and its elapsed seconds on a terminal, once it has taken longer than a second."""
    stream = terminal.raw(sys.stderr)
    if not is_heard_on_stderr() or not stream.isatty():
        yield lambda text: None
        return
    line = _Sign(text, stream)
    timer = Timer(AFTER_S, line.show)
    timer.daemon = True
    timer.start()
    try:
        yield line.say
    finally:
        timer.cancel()
        timer.join()  # It may be running right now.
        line.shown.close()


@contextlib.contextmanager
def checking(native: Native | None) -> Iterator[Native | None]:
    """Show the progress of a check; yields the engine's own validator, which the line names while it runs."""
    with elapsed(CHECKING) as say:

        def judged(spec: RunSpec) -> Judgement:
            assert native is not None
            if named := assess.validator(spec):
                say(f"waiting for {named}'s own validator; --no-native skips it")
            judgement = native(spec)
            say(CHECKING)
            return judgement

        yield None if native is None else judged
