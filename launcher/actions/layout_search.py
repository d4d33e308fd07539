"""A search with what it has found so far on stderr, where that is a terminal; Ctrl-C ends it with the best so far."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TextIO

from launcher.base import machine, terminal
from launcher.base.errors import ConfigError
from launcher.base.terminal import say
from launcher.base.units import rounded
from launcher.config import synonyms
from launcher.config.catalog import Catalog
from launcher.estimate.speed.result import SpeedEstimate
from launcher.planner import planning, wording
from launcher.planner.best import Searches, asks_nothing, chosen, none_fits, remarks
from launcher.planner.judge import LayoutJudge, Preflight
from launcher.planner.parallel_search import Progress as Tell
from launcher.planner.question import Question
from launcher.planner.result import Plan
from launcher.planner.search import Found
from launcher.preflight.measured.known import Measured
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec

if TYPE_CHECKING:
    from rich.progress import Progress

_OFTEN_S = 0.1
"""Seconds between two looks at what has been found."""


def search_interruptibly(question: Question, judge: LayoutJudge | None = None) -> Plan:
    """Search; what was found until then where Ctrl-C ends it.

    Args:
        question: The question.
        judge: Rules and estimates; the pre-flight's where None.
    """
    judge, began, last = judge or Preflight(), time.monotonic(), Found()
    try:
        with show_progress() as show:

            def tell(found: Found) -> None:
                nonlocal last
                last = found
                show(found)

            return planning.plan(question, judge=judge, progress=tell)
    except KeyboardInterrupt:
        say("launch: interrupted; this is what was found until then, and not the whole answer")
        return planning.answer(question, last, judge, seconds=time.monotonic() - began, finished=False)


def search(question: Question, judge: LayoutJudge) -> Plan:
    """Search with the progress shown; Ctrl-C ends the command, as a part of an answer is no layout to go on with."""
    with show_progress() as show:
        return planning.plan(question, judge=judge, progress=show)


@contextlib.contextmanager
def show_progress() -> Iterator[Tell]:
    """A function that shows the best so far; nothing where nobody looks."""
    stream = terminal.raw(sys.stderr)
    if not stream.isatty():
        yield lambda found: None
        return
    bar = _bar(stream)
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


def _bar(stream: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    words = TextColumn("{task.fields[best]}", markup=False, table_column=Column(no_wrap=True, ratio=1))
    count = TextColumn("{task.description}", table_column=Column(no_wrap=True))
    columns = (count, BarColumn(bar_width=10), TimeElapsedColumn(), words)
    # Without a thread that draws: a process that has one is not forked, and half of the search would wait.
    return Progress(*columns, console=Console(file=stream), transient=True, auto_refresh=False, expand=True)


class _Watched(LayoutJudge):
    """A judge that tells which runs it judges."""

    def __init__(self, judge: LayoutJudge, tell: Callable[[RunSpec], None]) -> None:
        self._judge, self._tell = judge, tell

    def errors(self, spec: RunSpec) -> Iterator[ConfigError]:
        """As the judge has them."""
        return self._judge.errors(spec)

    def verdict(self, spec: RunSpec) -> Verdict:
        """As the judge has it, which is told."""
        self._tell(spec)
        return self._judge.verdict(spec)

    def seconds(self, spec: RunSpec) -> float | None:
        """As the judge has them."""
        return self._judge.seconds(spec)

    def least_seconds(self, spec: RunSpec, chunkings: Sequence[tuple[str, int]]) -> float | None:
        """As the judge has them."""
        return self._judge.least_seconds(spec, chunkings)

    def speed(self, spec: RunSpec, verdict: Verdict) -> SpeedEstimate | None:
        """As the judge has it."""
        return self._judge.speed(spec, verdict)


@contextlib.contextmanager
def watch_judge(judge: LayoutJudge) -> Iterator[LayoutJudge]:
    """The judge, with a bar that says what it looks at: for searches over clusters and sizes of a run."""
    stream = terminal.raw(sys.stderr)
    if not stream.isatty():
        yield judge
        return
    bar, last, count = _bar(stream), time.monotonic(), 0
    task = bar.add_task("looking at layouts", total=None, best="")

    def tell(spec: RunSpec) -> None:
        nonlocal last, count
        count += 1
        if time.monotonic() - last > _OFTEN_S:
            last = time.monotonic()
            where = f"{spec.model.name} on {spec.gpus:,} ranks, sequences of {spec.sequence_length:,} tokens"
            bar.update(task, description=f"{count:,} layouts", best=where, refresh=True)

    with bar:
        yield _Watched(judge, tell)


def _best(found: Found) -> str:
    """The best so far in a few words."""
    best = found.first
    if best is None:
        return ""
    speed = ""
    if best.seconds:
        speed = f"{rounded(best.spec.tokens_per_step / best.seconds / best.spec.gpus)} tokens/s a GPU: "
    return f"best so far {speed}{wording.layout(best.spec)}"


def choose_layout(words: Sequence[str], catalog: Catalog, own: Measured | None) -> tuple[str, ...]:
    """Words with those of the best layout behind them, which are said; where nothing fits, as they are typed.

    Args:
        words: The words without ``plan=best``.
        catalog: The configuration folders.
        own: The measured runs of the user; None takes the shipped constants.

    Raises:
        ConfigErrors: They are no question.
    """
    plan = Searches(catalog, machine.facts(), partial(search, judge=Preflight(own))).plan(words)
    for line in remarks(plan):
        say(f"launch: {line}")
    if plan.layouts:
        say(f"launch: {synonyms.BEST} is {' '.join(chosen(plan)) or 'these words alone'}")
    else:
        say(f"launch: {synonyms.BEST}: {none_fits(plan)}; the run is judged as it is typed")
    kept = [word for word in words if word in plan.single or asks_nothing(word)]
    return (*kept, *chosen(plan)) if plan.layouts else (*words, *chosen(plan))
