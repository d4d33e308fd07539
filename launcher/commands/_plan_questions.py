"""The questions beside the layouts: how long and how dear, the smallest cluster, the largest run, what would help."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.commands import _plan_progress
from launcher.planner import answers, largest, length, sentences
from launcher.planner.judge import Judge, Preflight
from launcher.planner.nearest import nearest
from launcher.planner.question import Question, ask
from launcher.planner.result import Counts, Length, Plan
from launcher.planner.sizes import sized
from launcher.planner.smallest import smallest
from launcher.planner.validity import require_valid


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


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    words = "the fewest GPUs that train it, or that do within --days; a size that is typed is the limit"
    parser.add_argument("--smallest", action="store_true", help=words)
    words = "the largest micro-batch, sequence or model preset that fits here"
    parser.add_argument("--largest", choices=tuple(largest.KEYS), help=words)
    words = "tokens of the training, 1T or 500B, short for train.tokens: what each layout takes for them"
    parser.add_argument("--tokens", metavar="N", help=words)
    parser.add_argument("--days", type=float, metavar="D", help="the limit on the time of the whole training")
    words = "money of a GPU-hour, short for cluster.price_per_gpu_hour"
    parser.add_argument("--price", type=float, metavar="P", help=words)


def read(options: argparse.Namespace) -> Question:
    """The question of a command line, with the words that its options are short for.

    Raises:
        ConfigErrors: Words or options are wrong, or do not go together.
    """
    if options.largest is not None:
        beside = {"--smallest": options.smallest, "--days": options.days is not None}
        rule = "--largest asks for a size of the run on this cluster, and not for time or the cluster's size"
        errors = [ConfigError(flag, None, rule, ["--smallest"]) for flag, given in beside.items() if given]
        if errors:
            raise ConfigErrors(errors)
    question = ask(_words(options), vary=options.vary)
    length.require(question, options.days)
    return question


def _words(options: argparse.Namespace) -> tuple[str, ...]:
    typed = options.overrides
    return (*typed, *length.words(typed, tokens=options.tokens, price=options.price))


type Search = Callable[[Question, Judge], Plan]
"""The search for the layouts of a question."""


def answer(options: argparse.Namespace, question: Question, judge: Judge, search: Search) -> Answer:
    """Search, and answer what was asked beside the layouts.

    Args:
        options: Those of the verb.
        question: The question.
        judge: Rules and estimates.
        search: Searches the layouts.
    """
    asked = Length(days=options.days) if length.is_said(question) else None
    if options.smallest:
        with _plan_progress.watching(judge) as watched:
            least = smallest(question, watched, days=options.days)
        of_size = None if least.size is None else sized(question, least.size)
        said, keys = sentences.smallest(least, asked), {"smallest": answers.smallest(least)}
        return _beside(question, of_size, asked, lambda found: search(found, judge), said, keys)
    if options.largest is not None:
        with _plan_progress.watching(judge) as watched:
            most = largest.largest(options.largest, question, watched, lambda words: _further(options, question, words))
        keys = {"largest": answers.largest(most)}
        found = _beside(
            question, most.question, asked, lambda found: search(found, judge), sentences.largest(most), keys
        )
        return replace(found, said=(*found.said, *sentences.on_host(found.plan)))
    plan = replace(search(question, judge), length=asked)
    require_valid(question, plan)
    return _completed(question, plan, judge)


def _further(options: argparse.Namespace, question: Question, words: Iterable[str]) -> Question:
    return ask((*_words(options), *words), vary=options.vary, catalog=question.catalog, facts=question.facts)


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
        with _plan_progress.watching(judge) as watched:
            found = nearest(question, watched)
        return Answer(question=question, plan=replace(plan, nearest=found), is_enough=False)
    days = None if plan.length is None else plan.length.days
    if plan.length is None or days is None or length.in_time(plan.layouts[0], days) is not False:
        return Answer(question=question, plan=plan)
    with _plan_progress.watching(judge) as watched:
        least = smallest(question, watched, days=days, beyond=True)
    said = tuple(sentences.late(plan.layouts[0], plan.length, least))
    return Answer(question=question, plan=plan, said=said, keys={"smallest": answers.smallest(least)}, is_enough=False)
