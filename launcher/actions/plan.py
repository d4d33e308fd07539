"""Search the layouts that a run's words leave open, as ``launch plan`` and ``launcher.plan`` do."""

from __future__ import annotations

import time
from dataclasses import replace

from launcher.actions import native_layouts, plan_progress, plan_questions
from launcher.actions.asking import measured
from launcher.actions.plan_questions import Answer, MeasureRequest
from launcher.planner import planning
from launcher.planner.judge import Judge, Preflight
from launcher.planner.question import Question
from launcher.planner.result import Plan
from launcher.preflight.measured.known import Measured

clock = time.monotonic
"""Seconds, by which the time of a whole command is told."""


def question_of(request: MeasureRequest) -> Question:
    """The question of a command line; runs that cannot be measured are refused before anything is searched.

    Raises:
        ConfigErrors: The words are wrong.
    """
    question = plan_questions.read(request)
    if request.measure is not None:
        from launcher.actions import measure_layouts  # Late, as all that starts runs or reads them.

        measure_layouts.require(request, question)
    return question


def answered(request: MeasureRequest, question: Question, *, began: float, quiet: bool = False) -> Answer:
    """The answer to a question, with the seconds that all of the command has taken.

    Args:
        request: What is asked beside the layouts.
        question: The question.
        began: When the command began, by :data:`clock`.
        quiet: True shows no progress, and leaves Ctrl-C to the caller.
    """
    judge = Preflight(own_runs(request, question))
    found = plan_questions.answer(request, question, judge, _quietly if quiet else plan_progress.planned)
    return replace(found, plan=replace(found.plan, seconds=clock() - began), asked=question, judge=judge)


def sound(request: MeasureRequest, answer: Answer) -> Answer:
    """The answer with layouts that the engines' own validators take; what these refuse is said, and searched past.

    Raises:
        ConfigErrors: They refuse whatever is found.
    """
    question, judge = answer.asked, answer.judge
    if not request.native or not answer.plan.finished or not answer.plan.layouts or question is None or judge is None:
        return answer

    def again() -> Answer:
        found = plan_questions.answer(request, question, judge, plan_progress.planned)
        return replace(found, asked=question, judge=judge)

    return native_layouts.sound(answer, lambda each: each.plan, judge, again)


def own_runs(request: MeasureRequest, question: Question) -> Measured | None:
    """The measured runs of the user or of the cluster; None where the shipped constants are wanted."""
    return measured(wanted=request.measured, cluster=question.openings[0].spec.cluster) if question.openings else None


def _quietly(question: Question, judge: Judge) -> Plan:
    return planning.plan(question, judge=judge)
