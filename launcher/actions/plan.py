"""Search the layouts that a run's words leave open, for ``launch plan`` and ``launcher.plan``."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any

from launcher.actions import layout_search
from launcher.actions.requests import MeasureRequest, PlanRequest, own_measurements
from launcher.actions.waiting import elapsed
from launcher.base.errors import ConfigError, ConfigErrors, raise_any
from launcher.base.frozen import dataclass
from launcher.base.terminal import say
from launcher.planner import document, largest, length, planning, wording
from launcher.planner.judge import Preflight
from launcher.planner.layouts import Counts, Layout, Length, Plan
from launcher.planner.planning import require_valid
from launcher.planner.question import Question, ask
from launcher.planner.smallest import nearest, sized, smallest
from launcher.preflight.assess import judge_all, validator
from launcher.preflight.measured.known import Measured
from launcher.views.plan import sentences

clock = time.monotonic  # Clock, in seconds, that times a whole command.
_ROUNDS = 4  # Limit on searches: each excludes what the engines' validators refused in the one before.


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a question."""

    question: Question  # The question of the layouts; for a smallest or largest run, the one with that size.
    plan: Plan  # The layouts.
    sentences: tuple[str, ...] = ()  # Sentences shown before the layouts.
    keys: Mapping[str, Any] = field(default_factory=dict)  # Keys of the document besides those of the layouts.
    is_enough: bool = True  # False if nothing fits, or nothing fits in time.


def question_of(request: MeasureRequest) -> Question:
    """Read the question of a command line; ConfigErrors for conflicting options, before any search."""
    if request.largest is not None:
        beside = {"--smallest": request.smallest, "--days": request.days is not None}
        rule = "--largest asks for the size of a run on this cluster, not for its time or the cluster's size"
        errors = [ConfigError(flag, None, rule, ["--smallest"]) for flag, given in beside.items() if given]
        raise_any(errors)
    question = ask(request.words, vary=request.vary)
    length.require(question, request.days)
    if request.measure is not None:
        from launcher.actions import measure_layouts  # Late: a plan alone imports nothing that starts runs.

        measure_layouts.require_measurable(request, question)
    return question


def own_runs(request: PlanRequest, question: Question) -> Measured | None:
    """The measured runs of the user or the cluster; None if only the shipped constants are wanted."""
    if not question.openings:
        return None
    return own_measurements(wanted=request.measured, cluster=question.openings[0].spec.cluster, anchor=request.anchor)


class Search:
    """Searches for the answer to a question, then again without what the engines' own validators refuse.

    ``began`` is the start of the command by :data:`clock`; ``quiet`` shows no progress and leaves Ctrl-C to the caller.
    """

    def __init__(self, request: PlanRequest, question: Question, *, began: float, quiet: bool = False) -> None:
        self._request, self._question, self._began, self._quiet = request, question, began, quiet
        self._judge = Preflight(own_runs(request, question), unmeasured=request.unmeasured)

    def answer(self) -> Answer:
        """Search the layouts and answer the other questions; includes the seconds of the command so far."""
        found = self._answer()
        return replace(found, plan=replace(found.plan, seconds=clock() - self._began))

    def _answer(self) -> Answer:
        request, question = self._request, self._question
        if request.smallest:
            with layout_search.watch_judge(self._judge) as watched:
                least = smallest(question, watched, days=request.days)
            of_size = None if least.size is None else sized(question, least.size)
            keys = {"smallest": document.smallest_as_dict(least)}
            return self._beside(of_size, sentences.smallest(least, self._length), keys)
        if request.largest is not None:
            with layout_search.watch_judge(self._judge) as watched:
                most = largest.largest(request.largest, question, watched, self._further)
            answer = self._beside(most.question, sentences.largest(most), {"largest": document.largest_as_dict(most)})
            return replace(answer, sentences=(*answer.sentences, *sentences.on_host(answer.plan)))
        plan = replace(self._plan(question), length=self._length)
        require_valid(question, plan)
        return self._with_help(plan)

    def sound(self, answer: Answer) -> Answer:
        """The answer, searched again until the engines' own validators accept it; ConfigErrors after some rounds."""
        if not self._request.native or not answer.plan.finished or not answer.plan.layouts:
            return answer
        before = set[str]()
        for number in range(_ROUNDS):
            refused = self._refused(answer.plan)
            if not refused:
                return answer
            for layout, error in refused:
                say(f"launch: left out: {wording.layout(layout.spec)}: {error.where}: {error.rule}")
            reasons = {error.rule for _, error in refused}
            nothing_left = {each.overrides for each, _ in refused} >= {each.overrides for each in answer.plan.layouts}
            if number == _ROUNDS - 1 or (nothing_left and reasons == before):
                raise ConfigErrors(dict.fromkeys(error for _, error in refused))
            answer, before = self.answer(), reasons
        raise AssertionError("the last round returns or raises")

    @property
    def _length(self) -> Length | None:
        return Length(days=self._request.days) if length.is_length_set(self._question) else None

    def _plan(self, question: Question) -> Plan:
        search = planning.plan if self._quiet else layout_search.search_interruptibly
        return search(question, judge=self._judge)

    def _further(self, words: Iterable[str]) -> Question:
        question = self._question
        typed = (*self._request.words, *words)
        return ask(typed, vary=self._request.vary, catalog=question.catalog, facts=question.facts)

    def _beside(self, found: Question | None, said: Iterable[str], keys: Mapping[str, Any]) -> Answer:
        question = self._question
        if found is not None:
            plan = replace(self._plan(found), words=question.words, length=self._length)
            return Answer(question=found, plan=plan, sentences=tuple(said), keys=keys)
        none = Plan(
            words=question.words,
            assumptions=question.assumptions,
            layouts=(),
            counts=Counts(),
            seconds=0.0,
            single=question.single,
            length=self._length,
        )
        return Answer(question=question, plan=none, sentences=tuple(said), keys=keys, is_enough=False)

    def _with_help(self, plan: Plan) -> Answer:
        question, days = self._question, self._request.days
        if not plan.finished:
            return Answer(question=question, plan=plan)
        if not plan.layouts:
            with layout_search.watch_judge(self._judge) as watched:
                changes = nearest(question, watched)
            return Answer(question=question, plan=replace(plan, nearest=changes), is_enough=False)
        if plan.length is None or days is None or length.in_time(plan.layouts[0], days) is not False:
            return Answer(question=question, plan=plan)
        with layout_search.watch_judge(self._judge) as watched:
            least = smallest(question, watched, days=days, beyond=True)
        late, keys = sentences.late(plan.layouts[0], plan.length, least), document.smallest_as_dict(least)
        return Answer(question=question, plan=plan, sentences=tuple(late), keys={"smallest": keys}, is_enough=False)

    def _refused(self, plan: Plan) -> list[tuple[Layout, ConfigError]]:
        beside = (each for each in (plan.tight, plan.untried) if each is not None)
        shown = (*plan.layouts, *plan.others, *beside)
        named = " and ".join(sorted({f"{name}'s" for each in shown if (name := validator(each.spec))}))
        with elapsed(f"asking {named or "the engines'"} own validators about these layouts; --no-native skips them"):
            judged = list(zip(shown, judge_all([each.spec for each in shown]), strict=True))
        for remark in dict.fromkeys(remark.rule for _, judgement in judged for remark in judgement.warnings):
            say(f"launch: {remark}")
        refused = [(layout, judgement.errors[0]) for layout, judgement in judged if judgement.errors]
        for layout, error in refused:
            self._judge.refuse(layout.spec, error)
        return refused
