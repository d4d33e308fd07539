"""A search with what it has found so far on stderr, where that is a terminal; Ctrl-C ends it with the best so far."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from launcher.commands._common import say
from launcher.planner import planning, wording
from launcher.planner.halves import Progress
from launcher.planner.judge import Judge, Preflight
from launcher.planner.question import Question
from launcher.planner.result import Plan
from launcher.planner.search import Found
from launcher.text import terminal
from launcher.text.units import rounded

_OFTEN_S = 0.1
"""Seconds between two looks at what has been found."""


def planned(question: Question, judge: Judge | None = None) -> Plan:
    """Search; what was found until then where Ctrl-C ends it.

    Args:
        question: The question.
        judge: Rules and estimates; the pre-flight's where None.
    """
    judge, began, last = judge or Preflight(), time.monotonic(), Found()
    try:
        with shown() as show:

            def tell(found: Found) -> None:
                nonlocal last
                last = found
                show(found)

            return planning.plan(question, judge=judge, progress=tell)
    except KeyboardInterrupt:
        say("launch: interrupted; this is what was found until then, and not the whole answer")
        return planning.answer(question, last, judge, seconds=time.monotonic() - began, finished=False)


def watched(question: Question, judge: Judge) -> Plan:
    """Search with the progress shown; Ctrl-C ends the command, as a part of an answer is no layout to go on with."""
    with shown() as show:
        return planning.plan(question, judge=judge, progress=show)


@contextlib.contextmanager
def shown() -> Iterator[Progress]:
    """A function that shows the best so far; nothing where nobody looks."""
    stream = terminal.raw(sys.stderr)
    if not stream.isatty():
        yield lambda found: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    best = TextColumn("{task.fields[best]}", markup=False, table_column=Column(no_wrap=True, ratio=1))
    count = TextColumn("{task.description}", table_column=Column(no_wrap=True))
    columns = (count, BarColumn(bar_width=10), TimeElapsedColumn(), best)
    # Without a thread that draws: a process that has one is not forked, and half of the search would wait.
    console = Console(file=stream)
    bar = Progress(*columns, console=console, transient=True, auto_refresh=False, expand=True)
    task = bar.add_task("looking at layouts", total=None, best="")
    shown = time.monotonic()

    def show(found: Found) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown > _OFTEN_S:
            shown = now
            bar.update(task, description=f"{found.considered:,} layouts", best=_best(found), refresh=True)

    with bar:
        yield show


def _best(found: Found) -> str:
    """The best so far in a few words."""
    best = found.first
    if best is None:
        return ""
    speed = ""
    if best.seconds:
        speed = f"{rounded(best.spec.tokens_per_step / best.seconds / best.spec.gpus)} tokens/s a GPU: "
    return f"best so far {speed}{wording.layout(best.spec)}"
