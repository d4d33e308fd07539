"""The questions beside the layouts: how long and how dear, the smallest cluster, the largest run, what would help."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from launcher.actions import plan_progress
from launcher.actions.asking import Asked
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.planner import document, largest, length
from launcher.planner.judge import Judge, Preflight
from launcher.planner.question import Question, ask
from launcher.planner.result import Counts, Length, Plan
from launcher.planner.sizes import sized
from launcher.planner.smallest import smallest
from launcher.planner.validity import require_valid
from launcher.planner.what_would_fit import nearest
from launcher.views.plan import sentences


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a question.

    Attributes:
        question: The question of the layouts: for a smallest or largest run, the one with it.
        plan: The layouts.
        said: Sentences that stand before them.
        keys: Keys of the document beside theirs.
        is_enough: False where nothing fits, or not in time.
        asked: The question as it was asked.
        judge: The rules and estimates of the search.
    """

    question: Question
    plan: Plan
    said: tuple[str, ...] = ()
    keys: Mapping[str, Any] = field(default_factory=dict)
    is_enough: bool = True
    asked: Question | None = None
    judge: Preflight | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest(Asked):
    """A question of layouts.

    Attributes:
        vary: Groups whose options are searched, too.
        smallest: Ask for the fewest GPUs.
        largest: Ask for the largest ``micro-batch``, ``sequence`` or ``model``.
        tokens: Of the whole training, as typed: ``1T``.
        days: The limit on its time.
        price: Money of a GPU-hour.
        save: Write the first layout as the recipe of this name.
    """

    vary: tuple[str, ...] = ()
    smallest: bool = False
    largest: str | None = None
    tokens: str | None = None
    days: float | None = None
    price: float | None = None
    save: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRequest(PlanRequest):
    """A question of layouts, the best of which are to be measured.

    Attributes:
        measure: How many; None measures none.
        steps: Of each run.
        yes: Do not ask about the GPU-hours.
        dry_run: Show what would be started, and start nothing.
        ask: True where a person at the terminal may be asked.
    """

    measure: int | None = None
    steps: int | None = None
    yes: bool = False
    dry_run: bool = False
    ask: bool = False


def read(request: PlanRequest) -> Question:
    """The question of a command line, with the words that its options are short for.

    Raises:
        ConfigErrors: Words or options are wrong, or do not go together.
    """
    if request.largest is not None:
        beside = {"--smallest": request.smallest, "--days": request.days is not None}
        rule = "--largest asks for a size of the run on this cluster, and not for time or the cluster's size"
        errors = [ConfigError(flag, None, rule, ["--smallest"]) for flag, given in beside.items() if given]
        if errors:
            raise ConfigErrors(errors)
    question = ask(_words(request), vary=request.vary)
    length.require(question, request.days)
    return question


def _words(request: PlanRequest) -> tuple[str, ...]:
    typed = request.overrides
    return (*typed, *length.words(typed, tokens=request.tokens, price=request.price))


type Search = Callable[[Question, Judge], Plan]
"""The search for the layouts of a question."""


def answer(request: PlanRequest, question: Question, judge: Judge, search: Search) -> Answer:
    """Search, and answer what was asked beside the layouts.

    Args:
        request: What is asked beside the layouts.
        question: The question.
        judge: Rules and estimates.
        search: Searches the layouts.
    """
    asked = Length(days=request.days) if length.is_said(question) else None
    if request.smallest:
        with plan_progress.watching(judge) as watched:
            least = smallest(question, watched, days=request.days)
        of_size = None if least.size is None else sized(question, least.size)
        said, keys = sentences.smallest(least, asked), {"smallest": document.smallest_as_dict(least)}
        return _beside(question, of_size, asked, lambda found: search(found, judge), said, keys)
    if request.largest is not None:
        with plan_progress.watching(judge) as watched:
            most = largest.largest(request.largest, question, watched, lambda words: _further(request, question, words))
        keys = {"largest": document.largest_as_dict(most)}
        found = _beside(
            question, most.question, asked, lambda found: search(found, judge), sentences.largest(most), keys
        )
        return replace(found, said=(*found.said, *sentences.on_host(found.plan)))
    plan = replace(search(question, judge), length=asked)
    require_valid(question, plan)
    return _completed(question, plan, judge)


def _further(request: PlanRequest, question: Question, words: Iterable[str]) -> Question:
    return ask((*_words(request), *words), vary=request.vary, catalog=question.catalog, facts=question.facts)


def _beside(
    question: Question,
    found: Question | None,
    asked: Length | None,
    search: Callable[[Question], Plan],
    said: Iterable[str],
    keys: Mapping[str, Any],
) -> Answer:
    """The answer with the layouts of the question that was found; without any where there is none."""
    began = time.monotonic()
    if found is not None:
        plan = replace(search(found), words=question.words, length=asked)
        return Answer(question=found, plan=plan, said=tuple(said), keys=keys)
    none = Plan(
        words=question.words,
        assumptions=question.assumptions,
        layouts=(),
        counts=Counts(),
        seconds=time.monotonic() - began,
        single=question.single,
        length=asked,
    )
    return Answer(question=question, plan=none, said=tuple(said), keys=keys, is_enough=False)


def _completed(question: Question, plan: Plan, judge: Judge) -> Answer:
    """The layouts, and what would help where none fits or none is fast enough."""
    if not plan.finished:
        return Answer(question=question, plan=plan)
    if not plan.layouts:
        with plan_progress.watching(judge) as watched:
            found = nearest(question, watched)
        return Answer(question=question, plan=replace(plan, nearest=found), is_enough=False)
    days = None if plan.length is None else plan.length.days
    if plan.length is None or days is None or length.in_time(plan.layouts[0], days) is not False:
        return Answer(question=question, plan=plan)
    with plan_progress.watching(judge) as watched:
        least = smallest(question, watched, days=days, beyond=True)
    said = tuple(sentences.late(plan.layouts[0], plan.length, least))
    return Answer(
        question=question, plan=plan, said=said, keys={"smallest": document.smallest_as_dict(least)}, is_enough=False
    )
