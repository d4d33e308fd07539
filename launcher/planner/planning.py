"""Makes the plan: searches a question, spells layouts as overrides, and refuses words that no layout is valid with."""

import time
from collections.abc import Iterator

from launcher.base.errors import ConfigError, raise_any
from launcher.planner import slower_because
from launcher.planner.candidates import Candidate, Found
from launcher.planner.judge import Preflight
from launcher.planner.keys import SEARCHED
from launcher.planner.layouts import Layout, Plan
from launcher.planner.parallel_search import Progress, searched
from launcher.planner.question import Question
from launcher.planner.space import Space
from launcher.preflight import assess, findings
from launcher.spec.edit import override, value_at


def plan(question: Question, *, judge: Preflight | None = None, progress: Progress | None = None) -> Plan:
    """The plan for a question, judged by the pre-flight check or another judge."""
    judge, start = judge or Preflight(), time.monotonic()
    found = searched(spaces_of(question, judge), judge, progress)
    return answer(question, found, judge, seconds=time.monotonic() - start)


def spaces_of(question: Question, judge: Preflight) -> list[Space]:
    """One space of layouts for each engine that a question leaves open."""
    return [Space.of(opening.spec, opening.fixed, question.choices, judge.errors) for opening in question.openings]


def answer(question: Question, found: Found, judge: Preflight, *, seconds: float, finished: bool = True) -> Plan:
    """The plan from the results of a search, which may have been interrupted."""
    early = [] if finished or found.best or found.first is None else [found.first]
    layouts = slower_because.explained([layout_of(question, each, judge) for each in early or found.shown()])
    others = [layout_of(question, each, judge) for each in found.others()]
    tight, untried = found.faster(), found.promising()
    return Plan(
        words=question.words,
        assumptions=question.assumptions,
        layouts=layouts,
        others=slower_because.explained(others, layouts[0]) if layouts else (),
        tight=None if tight is None else layout_of(question, tight, judge),
        untried=None if untried is None else layout_of(question, untried, judge),
        counts=found.counts(),
        seconds=seconds,
        single=question.single,
        finished=finished,
    )


def layout_of(question: Question, found: Candidate, judge: Preflight) -> Layout:
    """A candidate as overrides to type, with its full speed estimate."""
    return Layout(
        overrides=(*question.assumed, *_typed(question, found)),
        spec=found.spec,
        speed=judge.speed(found.spec, found.verdict),
        verdict=found.verdict,
        unmeasured=assess.unmeasured(found.spec),
    )


def _typed(question: Question, found: Candidate) -> Iterator[str]:
    """The words that choose a layout: its engine's, and every key that these leave open or set otherwise."""
    opening = question.openings[found.opening]
    yield from opening.words
    for path in SEARCHED:
        value = value_at(found.spec, path)
        if path in question.choices or value != value_at(opening.spec, path):
            yield override(path, value)


def require_valid(question: Question, found: Plan) -> None:
    """Check that some layout is valid. Raises ConfigErrors if the words are wrong with every layout.

    The errors are then those that the typed words have with all engines; if the engines share none, those of each.
    """
    errors: tuple[ConfigError, ...] = ()
    if found.layouts:
        errors = findings.errors(found.layouts[0].spec)  # The search does not check names, paths and secrets.
    elif found.finished and found.counts.considered == found.counts.invalid:
        errors = _as_typed(question)
    raise_any(errors)


def _as_typed(question: Question) -> tuple[ConfigError, ...]:
    by_engine = [{error.path: error for error in findings.errors(each.spec)} for each in question.openings]
    every = {path: error for errors in by_engine for path, error in errors.items()}
    shared = every.keys() & set.intersection(*(set(errors) for errors in by_engine))
    return tuple(error for path, error in every.items() if path in shared or not shared)
