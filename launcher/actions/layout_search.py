"""Layout searches with progress on stderr if that is a terminal, and the layout for ``plan=best``."""

import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

from launcher.base import machine, terminal
from launcher.base.process import Timer
from launcher.base.terminal import say
from launcher.base.units import rounded
from launcher.config import synonyms
from launcher.config.catalog import Catalog
from launcher.planner import planning, wording
from launcher.planner.best import Searches, asks_nothing, chosen, none_fits, remarks
from launcher.planner.candidates import Found
from launcher.planner.judge import Preflight
from launcher.planner.layouts import Plan
from launcher.planner.parallel_search import Progress
from launcher.planner.question import Question
from launcher.preflight.measured.known import Measured
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec

_OFTEN_S = 0.1  # Seconds between updates of the progress.


def search_interruptibly(question: Question, judge: Preflight) -> Plan:
    """Search with progress; Ctrl-C ends the search and returns the best so far."""
    began, last = time.monotonic(), Found()
    try:
        with show_progress() as show:

            def note(found: Found) -> None:
                nonlocal last
                last = found
                show(found)

            return planning.plan(question, judge=judge, progress=note)
    except KeyboardInterrupt:
        say("launch: interrupted; this is what was found so far, not the full answer")
        return planning.answer(question, last, judge, seconds=time.monotonic() - began, finished=False)


def search(question: Question, judge: Preflight) -> Plan:
    """Search with progress; Ctrl-C ends the command, because a run cannot start from a partial answer."""
    with show_progress() as show:
        return planning.plan(question, judge=judge, progress=show)


@contextlib.contextmanager
def show_progress() -> Iterator[Progress]:
    """Yield a function that shows the best layout so far; it does nothing without a terminal."""
    with _bar() as show:
        yield lambda found: show(lambda: (found.considered, _best_text(found)))


@contextlib.contextmanager
def watch_judge(judge: Preflight) -> Iterator[Preflight]:
    """Yield the judge with a progress bar of the run that it checks, for searches over clusters and run sizes."""
    counted = itertools.count(1)
    with _bar() as show:

        def tell(spec: RunSpec) -> None:
            count = next(counted)
            where = f"{spec.model.name} on {spec.gpus:,} ranks, sequences of {spec.sequence_length:,} tokens"
            show(lambda: (count, where))

        yield cast("Preflight", _Watched(judge, tell))


class _Watched:
    """A judge that reports each run before checking its memory."""

    def __init__(self, judge: Preflight, tell: Callable[[RunSpec], None]) -> None:
        self._judge, self._tell = judge, tell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._judge, name)

    def verdict(self, spec: RunSpec) -> Verdict:
        self._tell(spec)
        return self._judge.verdict(spec)


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[Callable[[], tuple[int, str]]], None]]:
    """Yield a function that shows a number of layouts with a text, throttled; it does nothing without a terminal."""
    stream = terminal.raw(sys.stderr)
    if not stream.isatty():
        yield lambda state: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    words = TextColumn("{task.fields[best]}", markup=False, table_column=Column(no_wrap=True, ratio=1))
    count = TextColumn("{task.description}", table_column=Column(no_wrap=True))
    columns = (count, BarColumn(bar_width=10), TimeElapsedColumn(), words)
    # No drawing thread: a process with threads is not forked, and half of the search would wait.
    bar = Bar(*columns, console=Console(file=stream), transient=True, auto_refresh=False, expand=True)
    task, draw = bar.add_task("looking at layouts", total=None, best=""), Timer(_OFTEN_S)

    def show(state: Callable[[], tuple[int, str]]) -> None:
        if draw.is_due():
            number, beside = state()
            bar.update(task, description=f"{number:,} layouts", best=beside, refresh=True)

    with bar:
        yield show


def _best_text(found: Found) -> str:
    best = found.first
    if best is None:
        return ""
    speed = ""
    if best.seconds:
        speed = f"{rounded(best.spec.tokens_per_step / best.seconds / best.spec.gpus)} tokens/s a GPU: "
    return f"best so far {speed}{wording.layout(best.spec)}"


def choose_layout(words: Sequence[str], catalog: Catalog, own: Measured | None) -> tuple[str, ...]:
    """The words of a run followed by its best layout; the typed words if nothing fits."""
    plan = Searches(catalog, machine.facts(), partial(search, judge=Preflight(own))).plan(words)
    for line in remarks(plan):
        say(f"launch: {line}")
    if plan.layouts:
        say(f"launch: {synonyms.BEST} is {' '.join(chosen(plan)) or 'these words alone'}")
    else:
        say(f"launch: {synonyms.BEST}: {none_fits(plan)}; the run is checked as typed")
    kept = [word for word in words if word in plan.single or asks_nothing(word)]
    return (*kept, *chosen(plan)) if plan.layouts else (*words, *chosen(plan))
